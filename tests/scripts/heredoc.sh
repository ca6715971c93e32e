#!/bin/bash
#SBATCH --job-name=heredoc
#SBATCH --cpus-per-task=1
#SBATCH --time=5

lr=0.1
cat > config.yaml <<YAML
lr: $lr
steps: $((2 * 5))
name: $(basename "config.yaml" .yaml)
YAML
cat > raw.sh <<'RAW'
#!/bin/bash
#SBATCH --gres=gpu:8
echo "not expanded: $lr $(date)"
RAW
cat <<-TABS
	indented: $lr
	TABS
python3 - "$lr" <<'PYTHON'
import sys

text = open("config.yaml").read()
print(f"python got {sys.argv[1]} and {len(text.splitlines())} lines")
PYTHON
cat <<A <<B
never shown
A
the last one counts
B
tr a-z A-Z <<< "here string $lr"
while read -r key value; do
    echo "$key -> $value"
done < config.yaml
