import logging
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig

log = logging.getLogger(__name__)
ConfigStore.instance().store(name="config", node={"optimizer": {"lr": 0.01, "name": "sgd"}})


@hydra.main(version_base="1.3", config_path=None, config_name="config")
def main(config):
    run = Path(HydraConfig.get().runtime.output_dir)
    log.info("training with %s", config)
    (run / "result.txt").write_text(f"lr {config.optimizer.lr}\n")
    print(f"wrote the result for {config.optimizer.lr}")


if __name__ == "__main__":
    main()
