//! Measures disks as a benchmark program would: by requests and the time they take.

use crate::mechanical::Mechanical;
use crate::model::Model;
use crate::profiles::DataSheet;
use crate::request::{Ns, Request, SECTOR};

/// A generator with the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A disk with nothing that data sheets leave out: no overhead, buffer, write cache or bands, and a fast bus.
pub fn without_overheads(sheet: &DataSheet, zero_latency: bool) -> Mechanical {
    let bare = DataSheet { overhead: 0.0, buffer: 0, write_cache: 0, bus: 1_000_000, bands: None, ..sheet.clone() };
    DataSheet { request_max: 1 << 20, ..bare }.disk(zero_latency)
}

/// Mean time of a random request of a sector, in milliseconds.
pub fn random_access(disk: &mut Mechanical, write: bool, count: u64) -> f64 {
    let sectors = disk.layout().sectors();
    let (mut random, mut now, mut total) = (Random(12345), 0, 0);
    for n in 0..2 * count {
        let r = Request { write, start: random.below(sectors), sectors: 1 };
        // A random pause makes the angle independent of the request before.
        let start = now + random.below(30_000_000);
        now = disk.serve(start, &[r]).max(start);
        // The first half warms up.
        total += if n < count { 0 } else { now - start };
    }
    total as f64 / count.max(1) as f64 / 1e6
}

/// Time until the same sector passes again.
pub fn rotation(disk: &mut Mechanical) -> Ns {
    let r = Request { write: false, start: 10, sectors: 1 };
    let first = disk.serve(0, &[r]);
    disk.serve(first, &[r]) - first
}

/// MB/s when `bytes` are read or written from `start` on in requests of `each` bytes.
pub fn sequential(model: &mut Model, start: u64, bytes: u64, each: u64, write: bool) -> f64 {
    let mut now = model.serve(0, &[Request { write, start: start / SECTOR, sectors: 1 }]);
    let began = now;
    for offset in (start..start + bytes).step_by(each as usize) {
        let r = Request { write, ..Request::read(offset, each) };
        now = model.serve(now, &[r]);
    }
    bytes as f64 / ((now - began) as f64 / 1e9) / 1e6
}

/// MB/s of the medium with tracks of `track` sectors, by the data sheet: a cylinder takes one turn for each head, and
/// the skew at each switch.
pub fn medium(sheet: &DataSheet, track: u64) -> f64 {
    let turn = 60.0 / sheet.rpm as f64;
    let heads = sheet.surfaces as f64 * (turn + sheet.head_switch / 1e3);
    let per_cylinder = heads + (sheet.seek[0] - sheet.head_switch).max(0.0) / 1e3;
    (sheet.surfaces * track * SECTOR) as f64 / per_cylinder / 1e6
}

/// Mean time in milliseconds of a read of `kib` KiB after a seek of `seek` milliseconds: over all angles, in the
/// outermost zone, without overheads.
pub fn service(sheet: &DataSheet, kib: u64, seek: f64, zero_latency: bool) -> f64 {
    let flat = DataSheet { seek: [seek; 3], track_shortest: sheet.track_longest, ..sheet.clone() };
    let mut disk = without_overheads(&flat, zero_latency);
    let cylinder = sheet.surfaces * sheet.track_longest;
    let (mut random, mut now, mut total) = (Random(7), 0, 0);
    let count = 4000;
    for i in 0..count {
        let start = now + random.below(50_000_000);
        let place = (1 + i % 2 * 100) * cylinder + random.below(sheet.track_longest);
        now = disk.serve(start, &[Request { write: false, start: place, sectors: kib * 2 }]);
        total += now - start;
    }
    total as f64 / count as f64 / 1e6
}

/// The same by the data sheet: seek, half a rotation, and transfer.
pub fn service_by_data_sheet(sheet: &DataSheet, kib: u64, seek: f64) -> f64 {
    let turn = 60_000.0 / sheet.rpm as f64;
    seek + turn / 2.0 + (kib * 2) as f64 / sheet.track_longest as f64 * turn
}

/// Sequential requests of `bytes` per second, with `depth` at a time.
pub fn requests_per_second(model: &mut Model, write: bool, bytes: u64, depth: u64) -> f64 {
    let (mut now, rounds) = (0, 2000 / depth.max(1));
    for i in 0..rounds {
        let batch: Vec<Request> =
            (0..depth).map(|j| Request { write, ..Request::read((i * 64 + j) * bytes, bytes) }).collect();
        now = model.serve(now, &batch);
    }
    (rounds * depth) as f64 / (now as f64 / 1e9)
}

/// Median time of reads of `bytes` at random places.
pub fn scattered_read(model: &mut Model, bytes: u64) -> Ns {
    let places = (model.capacity() / bytes).max(1);
    let (mut random, mut now) = (Random(99), 0);
    let mut times: Vec<Ns> = (0..25)
        .map(|_| {
            let start = now + random.below(30_000_000);
            now = model.serve(start, &[Request::read(random.below(places) * bytes, bytes)]);
            now - start
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}
