import wandb

run = wandb.init(project="demo", config={"lr": 0.1}, settings=wandb.Settings(x_disable_stats=True))
for step in range(3):
    run.log({"loss": 1.0 / (step + 1)})
run.finish()
print(f"logged {step + 1} steps for lr {run.config['lr']}")
