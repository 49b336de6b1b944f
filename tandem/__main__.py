"""`python -m tandem`: the command line, also where no entry point is installed. `tandem up` starts this very file, so
that its processes are of its own checkout or installation, whatever else the path holds under the same names."""

import sys
from pathlib import Path

if __name__ == "__main__":  # not in processes that multiprocessing spawns, which run the main file too
    if not __package__:
        root = str(Path(__file__).resolve().parent.parent)
        sys.path.insert(0, root)
        import tandem

        sys.path.remove(root)  # an installed Tandem's is the folder of all packages, which belongs behind Python's own
        tandem.own_packages_first()

    from tandem.cli import main

    main()
