"""The typed settings of one broker, one module for each subject; `broker.py` reads them all."""
