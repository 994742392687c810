#!/bin/sh
# Submit a job to LSF 10.1.0.2 or newer, and print its number: submit.sh CORES MEMORY_MB MINUTES SCRIPT
# PHAZE_BSUB holds options of your cluster, such as '-q short -P ours'. What jobs print goes to .snakemake/lsf.
set -eu
logs=$PWD/.snakemake/lsf
mkdir -p "$logs"
said=$(bsub -env all -J phaze -n "$1" -R "span[hosts=1] rusage[mem=$2MB]" -M "$2MB" -W "$3" \
    -o "$logs/%J.out" ${PHAZE_BSUB:-} sh "$4")
echo "$said" | sed -n 's/^Job <\([0-9]*\)>.*/\1/p'
