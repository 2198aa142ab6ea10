#!/usr/bin/env bash
# One process of a cluster, by hand. Run it once on every machine:
#   MODE=all_reduce ./tf_config.sh worker 0
#   MODE=parameter_server ./tf_config.sh ps 0
# MODE: all_reduce, parameter_server or distributed_replicated.
set -euo pipefail
job=$1 index=$2
workers='["node1:5000", "node2:5000"]'
case ${MODE:-all_reduce} in
  all_reduce)
    mode=distributed_all_reduce
    cluster="{\"worker\": $workers}" ;;
  parameter_server | distributed_replicated)
    mode=$MODE
    cluster="{\"worker\": $workers, \"ps\": [\"node1:5001\"]}" ;;
esac
export TF_CONFIG="{\"cluster\": $cluster,
  \"task\": {\"type\": \"$job\", \"index\": $index}}"
exec python -m kbench --variable_update="$mode" --model=resnet50 \
  --num_batches=100 --train_dir=/shared/resnet50
