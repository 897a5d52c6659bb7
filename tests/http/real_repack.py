"""--repack-cache: processes that serve the same model share its packed weights."""

import glob
import os
import tempfile

from lib import Skip, main
from program import Program, tiny


def mapping(pid, path):
    """Sizes in KiB of the mapping of a file."""
    sizes, inside = {}, False
    with open(f"/proc/{pid}/smaps") as f:
        for line in f:
            words = line.split()
            if not words[0].endswith(":"):
                inside = line.rstrip().endswith(path)
            elif inside and words[-1] == "kB":
                sizes[words[0][:-1]] = int(words[1])
    return sizes


def test_two_processes_share_them():
    with tempfile.TemporaryDirectory() as folder:
        with Program(tiny(), "--repack-cache", folder) as one:
            files = glob.glob(folder + "/*.packed")
            if not files:
                raise Skip("this CPU packs nothing")
            made = os.stat(files[0]).st_ino
            with Program(tiny(), "--repack-cache", folder) as two:
                assert os.stat(files[0]).st_ino == made
                answers = [s.complete("the sea", max_tokens=12, temperature=0, logprobs=2) for s in (one, two)]
                assert answers[0]["choices"] == answers[1]["choices"], answers
                for s in (one, two):
                    m = mapping(s.process.pid, files[0])
                    shared = m["Shared_Clean"] + m["Shared_Dirty"]
                    assert shared > m["Rss"] - 128 > 0 and m["Anonymous"] == 0, m  # but for the checksums
                assert any("packed already" in line for line in two.lines)


if __name__ == "__main__":
    main(globals())
