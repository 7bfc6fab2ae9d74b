"""What if a log had been decided under another policy: which calls would have got another verdict.

    whatif = WhatIf(policy)
    for record in log: whatif.feed(record)      # -> what it says of the record's calls

The history stays as recorded: a call that ran has run, whatever the policy on trial says of it, and one that was denied has
not. So each verdict is compared on what really went before it, and one flip does not make a hundred others.
A call whose arguments were redacted, and which a rule of the policy would have to read, is not replayable, and said so.
"""

from gated.core.whatif.compared import Compared, Outcome, Tally, Verdict
from gated.core.whatif.feeding import WhatIf

__all__ = ["Compared", "Outcome", "Tally", "Verdict", "WhatIf"]
