//! Locks between processes. They are the kernel's own: the server hears nothing of them.

use crate::common::{Image, Mounted, can_mount, has_program, script};

fn python(m: &Mounted, text: &str) {
    let prelude = "\
import fcntl, os, signal, struct, subprocess, sys, time
OFD_SETLK, OFD_SETLKW = 37, 38
def lock(kind, start=0, length=0): return struct.pack('hhqqi', kind, os.SEEK_SET, start, length, 0)
def child(text):
    p = subprocess.Popen([sys.executable, '-c', 'import fcntl,os,struct,sys,time\\n' + text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == 'ready\\n'
    return p
def refused(f):
    try: f()
    except BlockingIOError: return
    raise AssertionError('locked')
def waits(pid):
    # Blocked in the kernel, and not on its way there.
    for _ in range(6000):
        if open(f'/proc/{pid}/wchan').read() not in ('', '0') and open(f'/proc/{pid}/stat').read().rsplit(') ')[1][0] == 'S': return
        time.sleep(0.01)
    raise AssertionError('does not wait')
";
    script(m, &["python3", "-c"], &format!("{prelude}{text}"));
}

fn mounted() -> Option<(Image, Mounted)> {
    if !can_mount() || !has_program("python3") {
        return None;
    }
    let image = Image::new();
    let m = image.mount();
    std::fs::write(m.path("f"), vec![0; 1000]).unwrap();
    Some((image, m))
}

#[test]
fn flock_blocks_and_ends_with_its_holder() {
    let Some((_image, m)) = mounted() else { return };
    python(
        &m,
        "
f = open('f', 'r+b')
holder = child('f=open(\"f\",\"r+b\"); fcntl.flock(f, fcntl.LOCK_EX); print(\"ready\",flush=True); time.sleep(1000)')
refused(lambda: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB))
refused(lambda: fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB))
waiter = child('f=open(\"f\",\"r+b\"); print(\"ready\",flush=True); fcntl.flock(f, fcntl.LOCK_EX); print(\"mine\",flush=True); sys.stdin.read()')
waits(waiter.pid)
holder.kill(); holder.wait()
assert waiter.stdout.readline() == 'mine\\n'
refused(lambda: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB))
waiter.communicate('')
fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
g = open('f', 'rb'); fcntl.flock(g, fcntl.LOCK_SH | fcntl.LOCK_NB)
refused(lambda: fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB))
",
    );
    m.unmount();
}

#[test]
fn byte_ranges_block_each_other_and_end_with_their_process() {
    let Some((_image, m)) = mounted() else { return };
    python(
        &m,
        "
f = open('f', 'r+b')
holder = child('f=open(\"f\",\"r+b\"); fcntl.lockf(f, fcntl.LOCK_EX, 100, 200); print(\"ready\",flush=True); time.sleep(1000)')
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 200, 0)
refused(lambda: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 299))
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 300)
# Who holds it is told.
found = struct.unpack('hhqqi', fcntl.fcntl(f, fcntl.F_GETLK, lock(fcntl.F_WRLCK, 250, 1)))
assert (found[0], found[2], found[3], found[4]) == (fcntl.F_WRLCK, 200, 100, holder.pid), found
waiter = child('f=open(\"f\",\"r+b\"); print(\"ready\",flush=True); fcntl.lockf(f, fcntl.LOCK_EX, 50, 220); print(\"mine\",flush=True); sys.stdin.read()')
waits(waiter.pid)
holder.kill(); holder.wait()
assert waiter.stdout.readline() == 'mine\\n'
# Closing any descriptor of the file ends the locks of its process.
waiter.communicate('')
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
open('f').close()
other = child('f=open(\"f\",\"r+b\"); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print(\"ready\",flush=True); sys.stdin.read()')
other.communicate('')
",
    );
    m.unmount();
}

#[test]
fn locks_of_open_file_descriptions() {
    let Some((_image, m)) = mounted() else { return };
    python(
        &m,
        "
f, g = open('f', 'r+b'), open('f', 'r+b')
fcntl.fcntl(f, OFD_SETLK, lock(fcntl.F_WRLCK, 0, 100))
# Two of one process stand in each other's way, and closing a third changes nothing.
refused(lambda: fcntl.fcntl(g, OFD_SETLK, lock(fcntl.F_WRLCK, 50, 1)))
open('f').close()
refused(lambda: fcntl.fcntl(g, OFD_SETLK, lock(fcntl.F_RDLCK, 50, 1)))
fcntl.fcntl(g, OFD_SETLK, lock(fcntl.F_WRLCK, 100, 1))
waiter = child('f=open(\"f\",\"r+b\"); print(\"ready\",flush=True); fcntl.fcntl(f, 38, struct.pack(\"hhqqi\", fcntl.F_WRLCK, 0, 99, 1, 0)); print(\"mine\",flush=True); sys.stdin.read()')
waits(waiter.pid)
f.close()
assert waiter.stdout.readline() == 'mine\\n'
waiter.communicate('')
",
    );
    m.unmount();
}
