"""Notices: telling people of tickets, over webhooks, by mail and on the bus.

`settings` reads the file that names the channels, `notice` makes what is said, `webhook`, `mail` and `subject` say it, `notifier`
follows the log and sees to it that everything is said, in each ticket's order, again after a failure, and never at the cost of
a verdict.
"""
