"""Delivers mail into a maildir for ever, or reads a maildir; prints the keys of the messages."""
import hashlib
import mailbox
import os
import sys

what, path = sys.argv[1:3]
box = mailbox.Maildir(path, create=True)


def sync(directory):
    fd = os.open(directory, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


if what == "deliver":
    # The mailbox itself, which was just made.
    for name in ("tmp", "new", "cur", ".", ".."):
        sync(os.path.join(path, name))
    number = 0
    while True:
        number += 1
        body = ("line %d\n" % number) * (number * 37 % 900)
        digest = hashlib.sha256(body.encode()).hexdigest()
        text = "From: a@example.org\nSubject: %s-%d\nX-Digest: %s\n\n%s" % (sys.argv[3], number, digest, body)
        # The module writes to tmp, fsyncs, and moves the file to new; the name is durable with its directory.
        key = box.add(text)
        sync(os.path.join(path, "new"))
        print(key, flush=True)
else:
    for key, message in box.iteritems():
        body = message.get_payload()
        if hashlib.sha256(body.encode()).hexdigest() == message["X-Digest"]:
            print(key)
