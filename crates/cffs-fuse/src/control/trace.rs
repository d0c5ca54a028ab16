//! Requests about traces.

use super::request::{Request, TRACE_READ_BYTES};
use cffs::trace::{Classes, Tracer};
use cffs::{Error, Fs, Result};
use serde_json::Value;
use std::time::{Duration, Instant};

/// How long a recording that ends waits for requests at most, and for how long there are none then.
const WAIT_MAX: Duration = Duration::from_millis(500);
const QUIET: Duration = Duration::from_millis(5);

fn classes(names: &str) -> Result<Classes> {
    names.parse().or_else(Error::invalid)
}

/// Another recording has begun.
fn taken_over<T>() -> Result<T> {
    Err(Error::Busy("another recording of the trace has begun, and gets the rest".into()))
}

/// Waits until no request has been in flight for a moment, or what is read ahead and written back takes too long: who ends a recording has
/// what belongs to it.
fn wait_until_quiet(tracer: &Tracer) {
    let began = Instant::now();
    let mut busy = began;
    while busy.elapsed() < QUIET && began.elapsed() < WAIT_MAX {
        std::thread::sleep(Duration::from_millis(1));
        if tracer.in_flight() > 0 {
            busy = Instant::now();
        }
    }
}

/// Executes a request about traces.
pub(super) fn carry_out(fs: &Fs, request: &Request) -> Result<Value> {
    let tracer = fs.tracer();
    match request {
        Request::TraceStart { classes: names, scramble, yields } => {
            let classes = classes(names)?;
            if *yields && tracer.is_taken() {
                return Err(Error::Busy("somebody else records a trace".into()));
            }
            fs.obfuscate_trace(*scramble)?;
            Ok(tracer.start(classes).into())
        }
        Request::TraceListing { recording, directory, position } => {
            if !tracer.is_current(*recording) {
                return taken_over();
            }
            let frame = fs.trace_listing(*directory, *position)?.frame();
            frame.map_or_else(|| Error::invalid("a listing longer than a frame"), |f| Ok(hexadecimal(&f).into()))
        }
        Request::TraceClasses { recording, classes: names, cold } => {
            if *cold && tracer.is_current(*recording) {
                fs.cool()?;
            }
            let classes = classes(names)?;
            let ends = classes == Classes::NONE;
            if ends && tracer.is_current(*recording) {
                wait_until_quiet(tracer);
            }
            let switched = tracer.switch(*recording, classes);
            // What has begun meanwhile is still recorded.
            if ends && switched && tracer.in_flight() > 0 {
                wait_until_quiet(tracer);
            }
            if switched { Ok(Value::Null) } else { taken_over() }
        }
        Request::TraceRead { recording } => match tracer.read(*recording, TRACE_READ_BYTES) {
            Some(frames) => Ok(hexadecimal(&frames).into()),
            None => taken_over(),
        },
        _ => Err(Error::Unsupported),
    }
}

/// Two digits for each byte. A busy mount sends megabytes of them in a second, so nothing here is formatted.
fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]);
    let mut text = Vec::with_capacity(2 * bytes.len());
    text.extend(digits);
    // They are all ASCII.
    String::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_as_digits() {
        assert_eq!(hexadecimal(&[0, 0x1f, 0xa0, 255]), "001fa0ff");
        assert_eq!(hexadecimal(&[]), "");
    }
}
