#!/usr/bin/env bash
# Train a capsule network on your own pictures, without a line of Python.
#
#     examples/own_pictures.sh PICTURES [STEPS] [PRESET]
#
# PICTURES has a subfolder of PNG or JPEG pictures for each class. A fifth of them is held out for testing.
set -euo pipefail
if [ $# = 0 ]; then
    echo "usage: $0 PICTURES [STEPS] [PRESET]; PICTURES has a subfolder of PNG or JPEG pictures for each class" >&2
    exit 2
fi
pictures=$1 steps=${2:-2000} preset=${3:-small}

# Resize every picture to 32x32 once, and print how many there are of each class.
emcaps data import "$pictures" --name own-pictures

# Train; Ctrl-C saves. The result is printed with the names of the classes.
emcaps train "$preset" --data own-pictures --steps "$steps" --run runs/own-pictures

# Resume for as many steps again: the numbers are those of a run that never stopped.
emcaps train --resume runs/own-pictures --steps $((2 * steps))

# Classify pictures; the right size, colours and normalisation come from the run.
emcaps predict runs/own-pictures "$pictures"
