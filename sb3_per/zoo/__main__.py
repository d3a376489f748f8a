"""``python -m sb3_per.zoo``, see :mod:`sb3_per.zoo`."""

from sb3_per.zoo import main

if __name__ == "__main__":
    main()
