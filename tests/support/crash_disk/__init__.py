"""A disk that loses power at any moment: the changes of a directory, and what may be left.

`recorder` writes down every change of a real directory, `states` builds the directories that a
power cut after each of them may leave, and `check` says whether one of those keeps the promises.
`scenarios` are what is run, and `explore` goes through all that they may leave.
"""
