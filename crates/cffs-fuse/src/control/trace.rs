//! Requests about traces.

use super::request::{Request, TRACE_READ_BYTES};
use cffs::trace::Classes;
use cffs::{Error, Fs, Result};
use serde_json::Value;

fn classes(names: &str) -> Result<Classes> {
    names.parse().or_else(Error::invalid)
}

/// Another recording has begun.
fn taken_over<T>() -> Result<T> {
    Err(Error::Busy("another recording of the trace has begun, and gets the rest".into()))
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
            if tracer.switch(*recording, classes(names)?) { Ok(Value::Null) } else { taken_over() }
        }
        Request::TraceInFlight { recording } if tracer.is_current(*recording) => {
            Ok((tracer.in_flight() + fs.readahead_waits() as u64).into())
        }
        Request::TraceInFlight { .. } => taken_over(),
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
