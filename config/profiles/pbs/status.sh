#!/bin/sh
# Print running, success or failed for a job of PBS: status.sh NUMBER
if said=$(qstat -x -f "$1" 2>&1); then
    case $said in
    *"job_state = F"*"Exit_status = 0"*) echo success ;;
    *"job_state = F"*) echo failed ;; # also killed, by its limits or with its node
    *) echo running ;;
    esac
    exit
fi
case $said in
*Unknown*) ;;
*) # the server does not answer: it is asked again
    echo running
    exit
    ;;
esac
status=.snakemake/pbs/$1.exit
for _ in 1 2 3 4 5; do # a file from another node may show late
    [ -s "$status" ] && break
    sleep 1
done
if [ "$(cat "$status" 2>/dev/null)" = 0 ]; then echo success; else echo failed; fi
