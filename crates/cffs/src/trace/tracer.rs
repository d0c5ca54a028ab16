//! The tracer of a file system, and the spans that are open.

use super::buffer::ThreadBuffer;
use super::causes::{Cause, Causes};
use super::classes::Classes;
use super::detail::Detail;
use super::kind::Kind;
use super::pending::{Dirtied, ForMany, Many, Pending, add_current};
use super::record::{ARGS_MAX, Record};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Numbers tracers, of which a process can have many.
static TRACERS: AtomicU64 = AtomicU64::new(1);

/// Threads that have ended, and whose buffers are kept until somebody reads them.
const ENDED_MAX: usize = 64;

/// A recording from which nobody has taken anything for so long was left alone: its recorder was killed.
const LEFT_ALONE: Duration = Duration::from_secs(5);

thread_local! {
    /// The buffers of this thread, with the number of their tracer. Mostly there is one.
    static BUFFERS: RefCell<Vec<(u64, Arc<ThreadBuffer>)>> = const { RefCell::new(Vec::new()) };
    /// The last transaction that the innermost span has changed something in; 0: none.
    static JOINED: Cell<u64> = const { Cell::new(0) };
}

/// Records what a file system does. See the [module](crate::trace).
pub struct Tracer {
    number: u64,
    /// What is recorded, as [`Classes::bits`].
    classes: AtomicU32,
    /// When it began, on the clock of [`monotonic`].
    began: u64,
    next_id: AtomicU64,
    /// Requests that will be recorded when they end.
    in_flight: AtomicU64,
    threads: Mutex<Threads>,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Threads {
    buffers: Vec<Arc<ThreadBuffer>>,
    /// How many there have been.
    count: u64,
    /// Number of the recording that may drain the buffers.
    recording: u64,
    /// When it did so for the last time.
    drained: Option<Instant>,
}

/// Nanoseconds of the clock that an [`Instant`] has. Each span reads it twice, so it is read without the steps that an `Instant` takes more.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

impl Default for Tracer {
    fn default() -> Tracer {
        Tracer {
            number: TRACERS.fetch_add(1, Ordering::Relaxed),
            classes: AtomicU32::new(0),
            began: monotonic(),
            next_id: AtomicU64::new(1),
            in_flight: AtomicU64::new(0),
            threads: Mutex::default(),
            pending: Mutex::default(),
        }
    }
}

impl Tracer {
    /// Records these classes until somebody begins a recording, which has what was recorded.
    pub(crate) fn record_from_the_beginning(&self, classes: Classes) {
        self.classes.store(classes.bits(), Ordering::Relaxed);
    }

    /// What is recorded since the mount, for the first who begins a recording.
    pub fn since_mount(&self) -> Classes {
        if self.threads.lock().recording == 0 { self.classes() } else { Classes::NONE }
    }

    /// Begins to record these classes. The first recording has what was recorded since the mount; the others begin empty, also
    /// if somebody has left it on. Returns the number of the recording.
    pub fn start(&self, classes: Classes) -> u64 {
        let mut threads = self.threads.lock();
        if !self.is_on() || threads.recording > 0 {
            threads.buffers.iter().for_each(|b| b.clear());
            *self.pending.lock() = Pending::default();
        }
        self.classes.store(classes.bits(), Ordering::Relaxed);
        threads.recording += 1;
        threads.drained = Some(Instant::now());
        threads.recording
    }

    /// Whether somebody records, and has taken something in the last seconds, or something is recorded for whoever comes first. Then
    /// a recording that is of less importance had better not begin.
    pub fn is_taken(&self) -> bool {
        let threads = self.threads.lock();
        self.is_on() && threads.drained.is_none_or(|at| at.elapsed() < LEFT_ALONE)
    }

    /// Records other classes from now on. False if another recording has begun meanwhile.
    pub fn switch(&self, recording: u64, classes: Classes) -> bool {
        let threads = self.threads.lock();
        let current = threads.recording == recording;
        if current {
            self.classes.store(classes.bits(), Ordering::SeqCst);
        }
        current
    }

    /// Whether this recording goes on: no other one has begun.
    pub fn is_current(&self, recording: u64) -> bool {
        self.threads.lock().recording == recording
    }

    /// Takes what was recorded, as frames: `most` bytes and what completes the buffer of a thread. Nothing is left when it
    /// returns nothing. `None` if another recording has begun meanwhile, which gets the rest.
    pub fn read(&self, recording: u64, most: usize) -> Option<Vec<u8>> {
        let mut threads = self.threads.lock();
        if threads.recording != recording {
            return None;
        }
        threads.drained = Some(Instant::now());
        let mut out = Vec::new();
        for _ in 0..threads.buffers.len() {
            if out.len() >= most {
                break;
            }
            threads.buffers[0].drain(&mut out);
            // The next call goes on with the next thread. A thread that has ended leaves nothing more.
            threads.buffers.rotate_left(1);
            if threads.buffers.last().is_some_and(|b| Arc::strong_count(b) == 1) {
                threads.buffers.pop().iter().for_each(|b| b.drain(&mut out));
            }
        }
        Some(out)
    }

    /// Requests of devices that have begun while they were recorded, and have not ended. Whoever ends a recording and waits for them has them.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// What is recorded at this moment.
    pub fn classes(&self) -> Classes {
        Classes::from_bits(self.on())
    }

    /// Whether anything is recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on() != 0
    }

    /// The same, as [`Classes::bits`]. With `--cfg cffs_untraced` nothing ever is, so that the compiler leaves out all places that
    /// could record: what tracing costs while it is off is the difference.
    #[inline]
    fn on(&self) -> u32 {
        if cfg!(cffs_untraced) { 0 } else { self.classes.load(Ordering::Relaxed) }
    }

    /// Nanoseconds on the clock of the trace.
    pub(super) fn now(&self) -> u64 {
        monotonic().saturating_sub(self.began)
    }

    /// Begins a span, which ends when it is dropped. What begins in this thread meanwhile is caused by it.
    #[inline]
    pub fn span(&self, kind: Kind, args: [u64; ARGS_MAX]) -> Span<'_> {
        match self.on() {
            0 => Span(None),
            on => self.open(kind, args, None, on),
        }
    }

    /// The same for work that another thread has left in a queue.
    #[inline]
    pub(crate) fn span_for(&self, cause: Cause, kind: Kind, args: [u64; ARGS_MAX]) -> Span<'_> {
        match self.on() {
            0 => Span(None),
            on => self.open(kind, args, Some(cause), on),
        }
    }

    /// The same for work that nothing in this file system has caused, and in a thread that may work for many of another one. The cause of that one
    /// means nothing here, also if this one begins to record meanwhile: so it is put aside while nothing is recorded too.
    pub(super) fn span_for_nobody(&self, kind: Kind) -> Span<'_> {
        let mut span = self.open(kind, [0; ARGS_MAX], Some(Cause::default()), self.on());
        if let Some(open) = &mut span.0 {
            open.on_behalf = Some(ForMany::of(None));
        }
        span
    }

    /// The cause of what this thread leaves in a queue.
    #[inline]
    pub(crate) fn current(&self) -> Cause {
        if self.is_on() { Cause::current() } else { Cause::default() }
    }

    /// Notes that this thread has changed so many bytes in a transaction, whose causes these are.
    pub(crate) fn joined(&self, transaction: u64, causes: &mut Causes, bytes: usize) {
        JOINED.set(transaction);
        add_current(causes, transaction, bytes as u64);
    }

    /// Notes that what this thread does makes an inode dirty, with so many bytes that were not.
    #[inline]
    pub(crate) fn note_dirty(&self, inode: u64, bytes: usize) {
        if self.is_on() {
            self.pending.lock().add(inode, Cause::current(), bytes as u64);
        }
    }

    /// An inode is gone, and what was dirty with it.
    #[inline]
    pub(crate) fn forget_dirty(&self, inode: u64) {
        if self.is_on() {
            self.pending.lock().forget(inode);
        }
    }

    /// The causes for which inodes are dirty. They are taken.
    pub(crate) fn take_dirty(&self, inodes: impl Iterator<Item = u64>) -> Dirtied {
        self.pending.lock().take(inodes)
    }

    #[cold]
    fn open(&self, kind: Kind, args: [u64; ARGS_MAX], asked: Option<Cause>, on: u32) -> Span<'_> {
        let before = Cause::current();
        let cause = asked.unwrap_or(before);
        // Spans of classes that are off lead to their cause.
        let recorded = kind.is_recorded(Classes::from_bits(on));
        let (id, start) = if recorded { (self.next_id(), self.now()) } else { (0, 0) };
        let origin = cause.origin.or(kind.is_origin().then_some(kind));
        Cause { span: if recorded { id } else { cause.span }, origin }.set_current();
        Span(Some(Open {
            tracer: self,
            before,
            joined_before: JOINED.replace(0),
            on_behalf: None,
            record: Record {
                kind,
                id,
                cause,
                thread: 0,
                start,
                duration: 0,
                args,
                transaction: 0,
                causes: None,
                detail: None,
            },
            _thread: PhantomData,
        }))
    }

    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// A request begins, which causes nothing itself. `None` if its class is off.
    #[inline]
    pub(super) fn begin_leaf(&self, kind: Kind) -> Option<InFlight<'_>> {
        if self.on() & kind.class().bits() == 0 {
            return None;
        }
        // In flight before it looks again: whoever has switched it off sees the one, or this sees the other.
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let began = InFlight { tracer: self, start: self.now() };
        (self.classes.load(Ordering::SeqCst) & kind.class().bits() != 0).then_some(began)
    }

    /// Records it.
    pub(super) fn leaf(&self, kind: Kind, start: u64, duration: u64, args: [u64; ARGS_MAX]) {
        let (id, cause) = (self.next_id(), Cause::current());
        self.push(&Record {
            kind,
            id,
            cause,
            thread: 0,
            start,
            duration,
            args,
            transaction: 0,
            causes: None,
            detail: None,
        });
    }

    fn push(&self, record: &Record) {
        // A thread that ends has no buffer any more.
        let _ = BUFFERS.try_with(|own| {
            let own = &mut *own.borrow_mut();
            match own.iter().find(|(number, _)| *number == self.number) {
                Some((_, buffer)) => buffer.push(record),
                None => {
                    // Those of tracers that are gone are nobody else's.
                    own.retain(|(_, buffer)| Arc::strong_count(buffer) > 1);
                    let buffer = self.add_thread();
                    buffer.push(record);
                    own.push((self.number, buffer));
                }
            }
        });
    }

    fn add_thread(&self) -> Arc<ThreadBuffer> {
        let name = std::thread::current().name().unwrap_or("thread").to_owned();
        let mut threads = self.threads.lock();
        threads.count += 1;
        let buffer = Arc::new(ThreadBuffer::new(threads.count, name));
        // Nobody reads, and threads come and go: the spans of the first to go are lost.
        let mut gone = threads.buffers.iter().filter(|b| Arc::strong_count(b) == 1);
        if gone.clone().count() >= ENDED_MAX
            && let Some(first) = gone.next()
        {
            let number = first.thread;
            buffer.note_lost(first.spans());
            threads.buffers.retain(|b| b.thread != number);
        }
        threads.buffers.push(buffer.clone());
        buffer
    }
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").field("classes", &self.classes()).finish_non_exhaustive()
    }
}

/// A request that will be recorded. It is in flight until this is dropped, after that.
pub(super) struct InFlight<'a> {
    tracer: &'a Tracer,
    /// When it began.
    pub(super) start: u64,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.tracer.in_flight.fetch_sub(1, Ordering::Release);
    }
}

/// A piece of work that is going on. It ends when this is dropped.
#[must_use = "the span ends where this is dropped"]
pub struct Span<'a>(Option<Open<'a>>);

struct Open<'a> {
    tracer: &'a Tracer,
    /// The innermost span before this one, and the transaction that it had joined.
    before: Cause,
    joined_before: u64,
    /// It is done for many.
    on_behalf: Option<ForMany>,
    /// Without the end. Its number is 0 if its class is off.
    record: Record,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Open<'_> {
    fn wants_detail(&self) -> bool {
        self.record.cause.origin.is_none()
            && self.record.kind.class().meets(Classes::OP)
            && self.tracer.classes().meets(Classes::REPLAY)
    }
}

impl Span<'_> {
    /// Its number; 0 if it is not recorded.
    pub(crate) fn id(&self) -> u64 {
        self.0.as_ref().map_or(0, |open| open.record.id)
    }

    /// Whether anything is recorded at all.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Sets an argument that was not known when it began.
    pub(crate) fn set_arg(&mut self, n: usize, value: u64) {
        if let Some(open) = &mut self.0 {
            open.record.args[n] = value;
        }
    }

    /// Whether what a replay needs of it is recorded: an operation that is a part of another one is not replayed.
    #[inline]
    pub(crate) fn wants_detail(&self) -> bool {
        self.0.as_ref().is_some_and(|open| open.record.id != 0 && open.wants_detail())
    }

    /// Sets what a replay needs of it.
    pub(crate) fn set_detail(&mut self, detail: Detail) {
        if let Some(open) = &mut self.0 {
            open.record.detail = Some(Box::new(detail));
        }
    }

    /// Adds those for whom it is done.
    pub(crate) fn add_causes(&mut self, more: &Causes) {
        let Some(open) = self.0.as_mut().filter(|_| !more.is_empty()) else { return };
        let all = open.record.causes.get_or_insert_default();
        all.merge(more);
        // Those for whom the thread worked before come back when it ends.
        let whom = Many::of_span(open.record.id, all);
        match &mut open.on_behalf {
            Some(on_behalf) => on_behalf.change(whom),
            none => *none = Some(ForMany::of(Some(whom))),
        }
        // Where nobody has it done, what it does is counted for the operation that most causes come from.
        let here = Cause::current();
        if open.record.cause.origin.is_none() {
            Cause { origin: all.main_origin(), ..here }.set_current();
        }
    }
}

impl Drop for Span<'_> {
    fn drop(&mut self) {
        let Some(open) = &mut self.0 else { return };
        open.before.set_current();
        let joined = JOINED.get();
        // Whatever it is a part of has joined the transaction as well.
        JOINED.set(if joined == 0 { open.joined_before } else { joined });
        let kind = open.record.kind;
        // What has begun while it was recorded is recorded, also if the recording ends first: other spans name it as their cause.
        if open.record.id == 0 {
            return;
        }
        if kind.is_origin() || kind == Kind::Writeback {
            open.record.transaction = joined;
        }
        open.record.duration = open.tracer.now().saturating_sub(open.record.start);
        open.tracer.push(&open.record);
    }
}

#[cfg(test)]
mod tests {
    use super::super::buffer::BUFFER_MAX;
    use super::super::frame::HEADER;
    use super::super::reader::{Item, Reader};
    use super::*;

    fn items(frames: &[u8]) -> Vec<Item> {
        let file = [&HEADER[..], frames].concat();
        let mut reader = Reader::new(&file[..]).unwrap();
        let all = std::iter::from_fn(|| reader.next_item().unwrap()).collect();
        assert!(!reader.is_cut());
        all
    }

    fn spans(frames: &[u8]) -> Vec<Record> {
        items(frames).into_iter().filter_map(|i| if let Item::Span(r) = i { Some(r) } else { None }).collect()
    }

    #[test]
    fn spans_know_their_cause_within_a_thread_and_across() {
        let tracer = Tracer::default();
        let recording = tracer.start(Classes::ALL);
        let queued = {
            let _op = tracer.span(Kind::Read, [5, 0, 100]);
            let _miss = tracer.span(Kind::Miss, [7, 1, 0]);
            tracer.leaf(Kind::DeviceRead, tracer.now(), 3, [4096, 512, 0]);
            tracer.current()
        };
        std::thread::scope(|s| {
            let ahead = || drop(tracer.span_for(queued, Kind::Readahead, [8, 16, 0]));
            // The end of a scope does not wait until what belongs to the thread is gone; joining it does.
            std::thread::Builder::new().name("ahead".into()).spawn_scoped(s, ahead).unwrap().join().unwrap();
        });
        let frames = tracer.read(recording, usize::MAX).unwrap();
        let all = spans(&frames);
        let of = |kind| all.iter().find(|r| r.kind == kind).unwrap();
        let (op, miss, request, ahead) = (of(Kind::Read), of(Kind::Miss), of(Kind::DeviceRead), of(Kind::Readahead));
        assert_eq!((op.cause, op.args), (Cause::default(), [5, 0, 100]));
        assert_eq!(miss.cause, Cause { span: op.id, origin: Some(Kind::Read) });
        assert_eq!(request.cause, Cause { span: miss.id, origin: Some(Kind::Read) });
        assert_eq!(ahead.cause, request.cause, "asked for by the miss, which had ended");
        assert!(ahead.thread != op.thread && op.start <= miss.start && miss.end() <= op.end());
        assert!(items(&frames).contains(&Item::Thread { thread: ahead.thread, name: "ahead".into() }));
        assert_eq!(tracer.read(recording, usize::MAX).unwrap(), [], "drained");
        assert_eq!(tracer.threads.lock().buffers.len(), 1, "the buffer of the thread that has ended is gone");
        assert_eq!(Cause::current(), Cause::default());
    }

    #[test]
    fn classes_that_are_off_leave_the_chain_whole_and_cost_nothing_when_all_are() {
        let tracer = Tracer::default();
        {
            let span = tracer.span(Kind::Read, [1, 2, 3]);
            assert!(!span.is_on() && tracer.begin_leaf(Kind::DeviceRead).is_none());
        }
        let recording = tracer.start(Classes::DEVICE);
        let (began, switched) = {
            let _op = tracer.span(Kind::Read, [1, 2, 3]);
            tracer.leaf(Kind::DeviceRead, 0, 3, [0, 512, 0]);
            let switched = tracer.switch(recording, Classes::DEVICE.with(Classes::OP));
            (tracer.span(Kind::Lookup, [1, 0, 0]), switched)
        };
        drop(began);
        assert!(switched);
        let all = spans(&tracer.read(recording, usize::MAX).unwrap());
        assert_eq!(all.iter().map(|r| r.kind).collect::<Vec<_>>(), [Kind::DeviceRead, Kind::Lookup]);
        assert!(all.iter().all(|r| r.cause == Cause { span: 0, origin: Some(Kind::Read) }), "{all:?}");
        Cause::default().set_current();
    }

    #[test]
    fn what_begins_in_a_recording_belongs_to_it_and_work_of_another_mount_to_nobody_here() {
        let (tracer, beside) = (Tracer::default(), Tracer::default());
        let recording = tracer.start(Classes::ALL);
        {
            let _op = tracer.span(Kind::Read, [1, 2, 3]);
            tracer.leaf(Kind::DeviceRead, 0, 3, [0, 512, 0]);
            assert!(tracer.switch(recording, Classes::NONE));
        }
        drop(tracer.span(Kind::Lookup, [1, 0, 0]));
        let all = spans(&tracer.read(recording, usize::MAX).unwrap());
        assert_eq!(all.iter().map(|r| r.kind).collect::<Vec<_>>(), [Kind::DeviceRead, Kind::Read]);
        assert_eq!(all[0].cause.span, all[1].id);
        // The recording begins within what is done for another mount, which has a trace of its own.
        beside.start(Classes::ALL);
        let recording = {
            let _op = beside.span(Kind::Write, [1, 2, 3]);
            let _work = tracer.span_for_nobody(Kind::OtherMount);
            let recording = tracer.start(Classes::ALL);
            tracer.leaf(Kind::DeviceRead, 0, 3, [0, 512, 0]);
            recording
        };
        let all = spans(&tracer.read(recording, usize::MAX).unwrap());
        assert_eq!(
            all.iter().map(|r| r.cause).collect::<Vec<_>>(),
            [Cause { span: 0, origin: Some(Kind::OtherMount) }]
        );
        assert_eq!(Cause::current(), Cause::default());
    }

    #[test]
    fn work_for_many_names_them_and_the_transaction_ties_the_rest() {
        let tracer = Tracer::default();
        let recording = tracer.start(Classes::ALL);
        for inode in 0..1000 {
            let _op = tracer.span(Kind::Create, [1, 0, 0]);
            tracer.note_dirty(inode, 100);
            tracer.joined(77, &mut Causes::default(), 10);
        }
        {
            let mut writeback = tracer.span(Kind::Writeback, [1000, 0, 0]);
            writeback.add_causes(&tracer.take_dirty(0..1000).all);
            tracer.leaf(Kind::DeviceWrite, 0, 1, [0, 512, 0]);
        }
        let all = spans(&tracer.read(recording, usize::MAX).unwrap());
        let writeback = all.iter().find(|r| r.kind == Kind::Writeback).unwrap();
        let causes = writeback.causes.as_ref().unwrap();
        assert_eq!(causes.counts().collect::<Vec<_>>(), [(Some(Kind::Create), 1000)]);
        assert_eq!(causes.named().len() as u64 + causes.left_out(), 1000);
        assert!(all.iter().filter(|r| r.kind == Kind::Create).all(|r| r.transaction == 77));
        assert_eq!(writeback.transaction, 0, "it changed nothing in one");
        let request = all.iter().find(|r| r.kind == Kind::DeviceWrite).unwrap();
        assert_eq!(request.cause, Cause { span: writeback.id, origin: Some(Kind::Create) });
        assert!(tracer.take_dirty(0..1000).all.is_empty());
    }

    #[test]
    fn what_is_done_for_many_comes_with_the_requests_of_the_device() {
        let tracer = Tracer::default();
        let recording = tracer.start(Classes::OP.with(Classes::DEVICE));
        {
            let _op = tracer.span(Kind::Write, [5, 0, 9000]);
            tracer.note_dirty(5, 9000);
        }
        {
            let _sync = tracer.span(Kind::Fsync, [5, 0, 0]);
            let _wait = tracer.span(Kind::CommitWait, [0; 3]);
            let mut writeback = tracer.span(Kind::Writeback, [1, 0, 0]);
            writeback.add_causes(&tracer.take_dirty(std::iter::once(5)).all);
            tracer.leaf(Kind::DeviceWrite, 0, 1, [0, 512, 0]);
            let mut commit = Causes::default();
            tracer.joined(3, &mut commit, 40);
            assert_eq!(commit.shares().collect::<Vec<_>>(), [(Some(Kind::Write), 1.0)], "and not for the fsync");
            drop(writeback);
            tracer.joined(3, &mut commit, 40);
            assert_eq!(commit.shares().map(|(_, s)| s).collect::<Vec<_>>(), [0.5, 0.5], "but what it does by itself");
        }
        let all = spans(&tracer.read(recording, usize::MAX).unwrap());
        let kinds: Vec<Kind> = all.iter().map(|r| r.kind).collect();
        assert_eq!(kinds, [Kind::Write, Kind::DeviceWrite, Kind::Writeback, Kind::Fsync]);
        assert_eq!((all[1].cause.span, all[2].cause.span), (all[2].id, all[3].id));
        // Without requests nobody asks.
        tracer.switch(recording, Classes::OP);
        drop(tracer.span(Kind::Writeback, [1, 0, 0]));
        assert!(spans(&tracer.read(recording, usize::MAX).unwrap()).is_empty());
    }

    #[test]
    fn buffers_are_bounded_and_a_recording_ends_where_another_begins() {
        let tracer = Tracer::default();
        let first = tracer.start(Classes::ALL);
        const MANY: u64 = 200_000;
        for _ in 0..MANY {
            drop(tracer.span(Kind::Lookup, [1, 0, 0]));
        }
        let frames = tracer.read(first, 1).unwrap();
        assert!(frames.len() <= BUFFER_MAX + 200, "{}", frames.len());
        let lost: u64 = items(&frames).iter().map(|i| if let Item::Lost { spans, .. } = i { *spans } else { 0 }).sum();
        assert_eq!(spans(&frames).len() as u64 + lost, MANY);
        assert!(lost > 0);
        // Left on and drained by nobody: the next recording begins with nothing of it, and names the thread again.
        drop(tracer.span(Kind::Lookup, [1, 0, 0]));
        let second = tracer.start(Classes::ALL);
        assert!(tracer.read(first, 1).is_none() && !tracer.switch(first, Classes::NONE) && tracer.is_on());
        assert_eq!(tracer.read(second, 1), Some(Vec::new()));
        drop(tracer.span(Kind::Lookup, [1, 0, 0]));
        let all = items(&tracer.read(second, 1).unwrap());
        assert!(matches!(all[..], [Item::Thread { .. }, Item::Span(_)]), "{all:?}");
        assert!(tracer.is_taken(), "somebody has just taken something");
        assert!(tracer.switch(second, Classes::NONE) && !tracer.is_taken());
    }

    #[test]
    fn a_mount_that_is_traced_from_its_beginning_hands_that_to_the_first_who_asks() {
        let tracer = Tracer::default();
        tracer.record_from_the_beginning(Classes::ALL);
        drop(tracer.span(Kind::Lookup, [1, 0, 0]));
        assert!(tracer.is_taken(), "it is for somebody who is still to come");
        assert_eq!(tracer.since_mount(), Classes::ALL);
        let first = tracer.start(Classes::ALL);
        assert_eq!(tracer.since_mount(), Classes::NONE);
        assert_eq!(spans(&tracer.read(first, 1).unwrap()).len(), 1);
    }

    #[test]
    fn threads_that_come_and_go_leave_little_and_their_spans_are_counted() {
        let tracer = Tracer::default();
        let recording = tracer.start(Classes::ALL);
        const THREADS: usize = 3 * ENDED_MAX;
        for _ in 0..THREADS {
            std::thread::scope(|s| {
                s.spawn(|| drop(tracer.span(Kind::Lookup, [1, 0, 0]))).join().unwrap();
            });
        }
        assert!(tracer.threads.lock().buffers.len() <= ENDED_MAX + 1);
        let frames = tracer.read(recording, usize::MAX).unwrap();
        let lost: u64 = items(&frames).iter().map(|i| if let Item::Lost { spans, .. } = i { *spans } else { 0 }).sum();
        assert_eq!(spans(&frames).len() + lost as usize, THREADS);
        assert!(lost > 0);
    }

    #[test]
    fn an_operation_that_is_told_twice_is_one_cause() {
        let tracer = Tracer::default();
        tracer.start(Classes::ALL);
        for _ in 0..100 {
            let _op = tracer.span(Kind::Write, [5, 0, 1]);
            tracer.note_dirty(5, 1);
            tracer.note_dirty(5, 2);
        }
        let causes = tracer.take_dirty(std::iter::once(5)).all;
        assert_eq!(causes.weight(), 300);
        assert_eq!(causes.counts().collect::<Vec<_>>(), [(Some(Kind::Write), 100)]);
        assert_eq!(causes.named().len() as u64 + causes.left_out(), 100);
    }

    #[test]
    fn a_damaged_trace_is_an_error_and_a_short_one_ends() {
        let tracer = Tracer::default();
        let recording = tracer.start(Classes::ALL);
        for _ in 0..50 {
            drop(tracer.span(Kind::Lookup, [1, 0, 0]));
        }
        let mut file = HEADER.to_vec();
        file.extend(super::super::frame::information(b"{}"));
        file.extend(tracer.read(recording, 1).unwrap());
        let count = |bytes: &[u8]| -> std::io::Result<(usize, bool)> {
            let mut reader = Reader::new(bytes)?;
            let mut n = 0;
            while reader.next_item()?.is_some() {
                n += 1;
            }
            Ok((n, reader.is_cut()))
        };
        let (whole, cut) = count(&file).unwrap();
        assert_eq!((whole, cut), (52, false));
        for len in HEADER.len()..file.len() {
            let (n, _) = count(&file[..len]).unwrap();
            assert!(n < whole, "cut at {len}");
        }
        for at in 0..file.len() {
            let mut bad = file.clone();
            bad[at] ^= 0x10;
            match count(&bad) {
                // A length that has become too large.
                Ok((n, cut)) => assert!(cut && n < whole, "byte {at}"),
                Err(e) => assert!(e.to_string().contains("trace"), "byte {at}: {e}"),
            }
        }
    }
}
