#!/bin/sh
# Print running, success or failed for a job of LSF: status.sh NUMBER
case $(bjobs -noheader -o stat "$1" 2>&1) in
DONE*) echo success ;;
EXIT*) echo failed ;; # also killed, by its limits or with its node
*"is not found"*) echo failed ;; # LSF forgets jobs an hour after their end: it was not asked for as long
*) echo running ;; # also where LSF does not answer: it is asked again
esac
