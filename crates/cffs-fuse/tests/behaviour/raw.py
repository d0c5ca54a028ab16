"""System calls that the tests' Rust cannot make without unsafe code: one command each, its answer on standard output.

A system call that fails prints "errno NAME". Whatever else goes wrong ends with a traceback and exit code 1.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_HANDLE_CONNECTABLE = 0x002
MAX_HANDLE = 128
FS_IOC_SHUTDOWN = 0x8004587D
FITRIM = 0xC0185879
# The same numbers on all 64-bit machines that are likely: x86-64, and the generic table.
IO_SETUP, IO_SUBMIT, IO_GETEVENTS = (206, 209, 208) if os.uname().machine == "x86_64" else (0, 2, 4)
IOCB_CMD_PWRITE = 1
BLOCK = 4096


def check(result):
    """The result of a call of libc, or its error."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class FileHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * MAX_HANDLE)]


def handle(path, connectable):
    """name_to_handle_at(2): the handle's type and bytes."""
    h = FileHandle(bytes=MAX_HANDLE)
    mount = ctypes.c_int()
    flags = AT_HANDLE_CONNECTABLE if connectable == "connectable" else 0
    check(LIBC.name_to_handle_at(AT_FDCWD, path.encode(), ctypes.byref(h), ctypes.byref(mount), flags))
    print(h.type, bytes(h.data[: h.bytes]).hex())


def open_handle(mount, kind, data):
    """open_by_handle_at(2): the inode's number, its path, and the contents or the names in it."""
    data = bytes.fromhex(data)
    h = FileHandle(bytes=len(data), type=int(kind))
    h.data[: len(data)] = data
    at = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    fd = check(LIBC.open_by_handle_at(at, ctypes.byref(h), os.O_RDONLY))
    st = os.fstat(fd)
    inside = ",".join(sorted(os.listdir(fd))) if (st.st_mode & 0o170000) == 0o040000 else os.read(fd, 4096).decode()
    print(st.st_ino, os.readlink(f"/proc/self/fd/{fd}"), inside, sep="\n")


def shutdown(mount, flags):
    """FS_IOC_SHUTDOWN: the file system stops as if the power went, after a sync (0), a log flush (1) or nothing (2)."""
    fd = os.open(mount, os.O_RDONLY)
    fcntl.ioctl(fd, FS_IOC_SHUTDOWN, struct.pack("I", int(flags)))
    print("ok")


def trim(mount, start, length):
    """FITRIM: the bytes that were discarded."""
    fd = os.open(mount, os.O_RDONLY)
    answer = fcntl.ioctl(fd, FITRIM, struct.pack("QQQ", int(start), int(length), 0))
    print(struct.unpack("QQQ", answer)[1])


def lseek(path, offset, whence):
    """lseek(2) with SEEK_DATA or SEEK_HOLE: the new offset."""
    fd = os.open(path, os.O_RDONLY)
    print(os.lseek(fd, int(offset), {"data": os.SEEK_DATA, "hole": os.SEEK_HOLE}[whence]))


class Iocb(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("reqprio", ctypes.c_int16),
        ("fildes", ctypes.c_uint32),
        ("buf", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("resfd", ctypes.c_uint32),
    ]


class Aio:
    """Asynchronous writes of one descriptor, each from a buffer of its own (Linux AIO)."""

    def __init__(self, fd, depth, size):
        self.fd, self.size, self.context = fd, size, ctypes.c_ulong()
        check(LIBC.syscall(IO_SETUP, depth, ctypes.byref(self.context)))
        self.buffers = [mmap.mmap(-1, size) for _ in range(depth)]
        self.iocbs = [None] * depth

    def submit(self, slot, offset, byte):
        self.buffers[slot][:] = bytes([byte]) * self.size
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffers[slot]))
        iocb = Iocb(data=slot, opcode=IOCB_CMD_PWRITE, fildes=self.fd, buf=address, nbytes=self.size, offset=offset)
        self.iocbs[slot] = iocb
        one = (ctypes.c_void_p * 1)(ctypes.addressof(iocb))
        check(LIBC.syscall(IO_SUBMIT, self.context, ctypes.c_long(1), one))

    def wait(self):
        """The slot of one write that is done, and its result."""
        event = (ctypes.c_int64 * 4)()
        while check(LIBC.syscall(IO_GETEVENTS, self.context, ctypes.c_long(1), ctypes.c_long(1), event, None)) == 0:
            pass
        return event[0], event[2]


def read_beside(path, blocks, seconds):
    """Direct writes in the background. After each completion a buffered read must see the new bytes."""
    blocks, depth = int(blocks), 8
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, bytes(blocks * BLOCK))
    os.fsync(fd)
    reader = os.fork()
    if reader == 0:
        while True:
            for block in range(blocks):
                os.pread(fd, BLOCK, block * BLOCK)
    stale, writes = 0, 0
    try:
        aio = Aio(os.open(path, os.O_RDWR | os.O_DIRECT), depth, BLOCK)
        # A slot has blocks of its own, so that no two writes of one block are under way.
        at, byte = [slot for slot in range(depth)], 1
        content = [0] * depth
        for slot in range(depth):
            aio.submit(slot, at[slot] * BLOCK, byte)
            content[slot] = byte
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            slot, result = aio.wait()
            if result != BLOCK:
                raise OSError(-result, "a direct write")
            writes += 1
            stale += os.pread(fd, BLOCK, at[slot] * BLOCK) != bytes([content[slot]]) * BLOCK
            at[slot] = (at[slot] + depth) % blocks
            byte = byte % 255 + 1
            content[slot] = byte
            aio.submit(slot, at[slot] * BLOCK, byte)
        for _ in range(depth):
            aio.wait()
    finally:
        os.kill(reader, 9)
        os.waitpid(reader, 0)
    print(writes, stale)


def write_to_the_end(path, most):
    """Direct writes in the background, until the device is full: the bytes written, and the names of the errors."""
    size, depth = 256 << 10, 8
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    aio = Aio(fd, depth, size)
    next_offset, under_way, written, errors = 0, 0, 0, set()
    for slot in range(depth):
        aio.submit(slot, next_offset, 1)
        next_offset, under_way = next_offset + size, under_way + 1
    while under_way:
        slot, result = aio.wait()
        under_way -= 1
        written += max(result, 0)
        if result < 0:
            errors.add(errno.errorcode[-result])
        if result == size and next_offset < int(most) and not errors:
            aio.submit(slot, next_offset, 1)
            next_offset, under_way = next_offset + size, under_way + 1
    print(written, ",".join(sorted(errors)))


COMMANDS = {
    f.__name__: f for f in [handle, open_handle, shutdown, trim, lseek, read_beside, write_to_the_end]
}

try:
    COMMANDS[sys.argv[1]](*sys.argv[2:])
except OSError as e:
    print("errno", errno.errorcode.get(e.errno, e.errno))
