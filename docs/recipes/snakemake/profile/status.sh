#!/bin/sh
# What Snakemake is to think of a job: running, success or failed.
csub show --json "$1" | python3 -c '
import json, sys

states = {row["state"] for row in json.load(sys.stdin)}
waiting = {"PENDING", "RUNNING", "REQUEUED"}
print("running" if states & waiting else "success" if states == {"COMPLETED"} else "failed")
'
