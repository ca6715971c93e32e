export PYTHON_OF_TRAIN="$CONDA_PREFIX/bin/python"
