//! Reading a trace.

use super::frame::{EARLIER, FRAME_MAX, HEADER, INFORMATION, LISTING, SPANS, THREAD, THREAD_NAME_MAX};
use super::listing::Listing;
use super::record::{Record, decode};
use super::varint::take;
use crate::format::crc32c;
use std::collections::VecDeque;
use std::io::{self, Read};

/// A piece of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A span that has ended. They are in the order in which they ended only among those of one thread.
    Span(Record),
    /// The name of a thread.
    Thread {
        /// Its number.
        thread: u64,
        /// Its name.
        name: String,
    },
    /// Spans were lost, because nobody drained the buffer of the thread in time.
    Lost {
        /// The thread.
        thread: u64,
        /// How many.
        spans: u64,
    },
    /// What the recorder knew of the file system: a JSON object.
    Information(Vec<u8>),
    /// Names in a directory at the beginning.
    Listing(Listing),
}

/// Reads a trace piece by piece, in memory for one frame.
pub struct Reader<R> {
    input: R,
    items: VecDeque<Item>,
    /// Position of the next frame.
    at: u64,
    cut: bool,
}

fn damaged(at: u64, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the trace is damaged at byte {at}: {what}"))
}

impl<R: Read> Reader<R> {
    /// Begins to read.
    ///
    /// # Errors
    /// Those of the input, and `InvalidData` if this is no trace or one of another version.
    pub fn new(mut input: R) -> io::Result<Reader<R>> {
        let mut header = Vec::with_capacity(HEADER.len());
        Read::by_ref(&mut input).take(HEADER.len() as u64).read_to_end(&mut header)?;
        if header.len() < HEADER.len() || header[..8] != HEADER[..8] {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not a trace of cffs"));
        }
        if header != HEADER && EARLIER.iter().all(|earlier| header != *earlier) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the trace has another version of the format"));
        }
        Ok(Reader { input, items: VecDeque::new(), at: HEADER.len() as u64, cut: false })
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// Those of the input, and `InvalidData` with the position where something is wrong.
    pub fn next_item(&mut self) -> io::Result<Option<Item>> {
        while self.items.is_empty() {
            let Some(body) = self.read_frame()? else { return Ok(None) };
            let at = self.at;
            self.at += body.len() as u64 + 8;
            self.parse(&body).ok_or_else(|| damaged(at, "a frame says what cannot be"))?;
        }
        Ok(self.items.pop_front())
    }

    /// Whether the trace ended within a frame, because its recorder was killed.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// The body of the next frame. `None` at the end, or where the file is cut off.
    fn read_frame(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut head = Vec::with_capacity(8);
        Read::by_ref(&mut self.input).take(8).read_to_end(&mut head)?;
        let Ok(head) = <[u8; 8]>::try_from(head.as_slice()) else {
            self.cut |= !head.is_empty();
            return Ok(None);
        };
        let word = |from: usize| u32::from_le_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]]);
        let (len, crc) = (word(0), word(4));
        if len == 0 || len as usize > FRAME_MAX {
            return Err(damaged(self.at, "a frame has an impossible length"));
        }
        let mut body = Vec::new();
        Read::by_ref(&mut self.input).take(u64::from(len)).read_to_end(&mut body)?;
        if body.len() < len as usize {
            self.cut = true;
            return Ok(None);
        }
        if crc32c(&body) != crc {
            return Err(damaged(self.at, "the checksum of a frame is wrong"));
        }
        Ok(Some(body))
    }

    fn parse(&mut self, body: &[u8]) -> Option<()> {
        let (kind, mut rest) = body.split_first()?;
        let b = &mut rest;
        match *kind {
            SPANS => {
                let (thread, lost, mut before) = (take(b)?, take(b)?, take(b)?);
                if lost > 0 {
                    self.items.push_back(Item::Lost { thread, spans: lost });
                }
                while let Some((len, behind)) = b.split_first_chunk::<2>() {
                    let len = usize::from(u16::from_le_bytes(*len));
                    let (start, record) = decode(behind.get(..len)?, thread, before)?;
                    (*b, before) = (&behind[len..], start);
                    self.items.extend(record.map(Item::Span));
                }
                b.is_empty().then_some(())
            }
            THREAD => {
                let thread = take(b)?;
                let name = String::from_utf8_lossy(&b[..b.len().min(THREAD_NAME_MAX)]).into_owned();
                self.items.push_back(Item::Thread { thread, name });
                Some(())
            }
            INFORMATION => {
                self.items.push_back(Item::Information(b.to_vec()));
                Some(())
            }
            LISTING => {
                self.items.push_back(Item::Listing(Listing::decode(b)?));
                Some(())
            }
            // Of a later version.
            _ => Some(()),
        }
    }
}
