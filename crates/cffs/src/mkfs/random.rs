//! Random numbers from the kernel, and the time.

use crate::error::Result;

pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut b = [0; N];
    let mut done = 0;
    while done < N {
        let n = rustix::rand::getrandom(&mut b[done..], rustix::rand::GetRandomFlags::empty())
            .map_err(std::io::Error::from)?;
        done += n;
    }
    Ok(b)
}

/// A number that cannot be predicted.
pub(crate) fn random_u32() -> Result<u32> {
    Ok(u32::from_ne_bytes(random()?))
}

/// A new identity: random, version 4 of RFC 9562.
pub fn random_uuid() -> Result<[u8; 16]> {
    let mut uuid: [u8; 16] = random()?;
    uuid[6] = uuid[6] & 0x0f | 0x40; // version 4, as RFC 9562 has it
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

/// The time, in nanoseconds since 1970.
pub(crate) fn now_ns() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
}
