#!/bin/bash
#SBATCH --job-name=exec
#SBATCH --cpus-per-task=1
#SBATCH --time=5

export PYTHONUNBUFFERED=1
exec python3 -c '
import atexit, signal, sys
atexit.register(lambda: print("at exit"))
print("args", sys.argv[1:])
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1):
    print(number.name, signal.getsignal(number) if number != signal.SIGINT else "")
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
sys.exit(5)
' one "two words"
