// nextflow run main.nf
//
// Each task waits for a member of csub: tasks run train.sh with different arguments, so their
// members are of one kind and join each other's packs. A task ends with its member's exit status.
params.rates = [0.1, 0.2, 0.3]

process train {
    input: val lr
    output: path 'loss.txt'
    script:
    """
    csub --wait --join --gres=gpu:1 --time=10 --mem=600M --output=train.log ${projectDir}/train.sh ${lr}
    """
}

workflow {
    losses = train(channel.fromList(params.rates))
    losses.view { loss -> loss.text.trim() }
}
