#!/bin/sh
# One job of Snakemake; the rules that this profile submits are to be alike in what they take of a
# GPU. A copy of this file for another rule makes that a kind of its own.
exec sh "$1"
