"""The command line as a script whose bars begin at once, and not after half a second."""

#: The command line with a timer that has run out when it is started.
AT_ONCE = """
import threading
class RunOut(threading.Timer):
    def start(self):
        self.function()
threading.Timer = RunOut
from segmentlog_command import main
main()
"""
