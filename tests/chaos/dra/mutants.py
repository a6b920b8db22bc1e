"""Mistakes of a DRA driver that chaos must find: each is one change of kdp's source, by a rule that it breaks."""

from __future__ import annotations

from typing import Final

from tests.chaos.mutants import Mutant

MUTANTS: Final[dict[str, Mutant]] = {
    "a device is given to two claims": Mutant(
        (1,),
        "dra/claims/prepare.py",
        "        check_free(record.uses, ((each.claim, each.uses) for each in others))",
        "        del others",
    ),
    "the devices of a claim whose record is damaged are free": Mutant(
        (1,),
        "dra/claims/orphans.py",
        "        return [*records, *(record for record in map(self.rebuilt, lost) if record is not None)]",
        "        return records",
    ),
    "a prepared claim is prepared anew": Mutant(
        (2,),
        "dra/claims/lifecycle.py",
        "        is_prepared = record.is_complete and self._is_this_boot(record)",
        "        is_prepared = False",
    ),
    "a damaged CDI spec is not written again": Mutant(
        (2,),
        "dra/claims/prepare.py",
        "        await offload(restore)\n",
        "",
    ),
    "a failure after released repeats it": Mutant(
        (3,),
        "dra/claims/prepare.py",
        "        await offload(lambda: self.store.commit(draft, step.record))",
        "        await offload(draft.discard)",
    ),
    "released is never called": Mutant(
        (3,),
        "dra/claims/lifecycle.py",
        "        if self.releases and record.parts:",
        "        if not record.parts:",
    ),
    "the state that allocate left is not saved": Mutant(
        (3,),
        "dra/claims/checkpoint.py",
        '                    "state": saved.state,',
        '                    "state": {},',
    ),
    "a claim is in its own way": Mutant(
        (4,),
        "dra/claims/prepare.py",
        "if each.claim.uid != record.claim.uid)",
        "if each)",
    ),
    "a sick device has no taint": Mutant(
        (6,),
        "dra/publishing/feed.py",
        "                    devices = tainted(found.devices, self._driver, self._health_taint, found.health)",
        "                    devices = tainted(found.devices, self._driver, None, found.health)",
    ),
    "a slice that somebody deletes is not made again": Mutant(
        (6,),
        "dra/publishing/planner.py",
        "            del self._stored[name]\n            self._settle(now)",
        "            return",
    ),
    "the sockets stay when the process ends": Mutant(
        (6, 7),
        "kubelet/server.py",
        "                os.unlink(self._file)",
        "                pass",
    ),
    "the CDI spec of a claim stays": Mutant(
        (7,),
        "dra/claims/prepare.py",
        "        has_spec = self._cdi.remove_part(self._kind, claim.uid)",
        "        has_spec = False",
    ),
    "each file that is written leaks a descriptor": Mutant(
        (8,),
        "storage/files.py",
        "    os.close(_replace(file, data, mode, sync, is_locked=False))",
        "    _replace(file, data, mode, sync, is_locked=False)",
    ),
}
