#!/bin/sh
# Submit a job to PBS Professional or OpenPBS, and print its number: submit.sh CORES MEMORY_MB MINUTES SCRIPT
# PHAZE_QSUB holds options of your cluster, such as '-q short -A ours'. What jobs print goes to .snakemake/pbs, where each
# also leaves its exit status, for servers that forget jobs when they end.
set -eu
logs=$PWD/.snakemake/pbs
mkdir -p "$logs"
exec qsub -V -S /bin/sh -N phaze -j oe -o "$logs" \
    -l "select=1:ncpus=$1:mem=$2mb" -l "walltime=$3:00" ${PHAZE_QSUB:-} <<END
sh "$4"
echo \$? > "$logs/\$PBS_JOBID.exit"
END
