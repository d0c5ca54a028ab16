//! The models against their data sheets, measured as a benchmark program would measure a disk: by requests and the time
//! they take.

use cffs_disk::profiles::{Kind, Sheet, all, find};
use cffs_disk::{Mechanical, Model, Ns, Request, SECTOR};

fn sheets() -> Vec<(&'static str, Sheet)> {
    let sheet = |kind| match kind {
        Kind::Mechanical(sheet) => Some(sheet),
        Kind::Priced(_) => None,
    };
    all().into_iter().filter_map(|p| Some((p.name, sheet(p.kind)?))).collect()
}

/// The same numbers everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Without what is not in data sheets.
fn bare(sheet: &Sheet, zero_latency: bool) -> Mechanical {
    Sheet { overhead: 0.0, buffer: 0, write_cache: 0, bus: 1_000_000, ..sheet.clone() }.disk(zero_latency)
}

/// Mean time of random requests in milliseconds.
fn random_mean(disk: &mut Mechanical, write: bool, count: u64) -> f64 {
    let sectors = disk.layout().sectors();
    let (mut random, mut now) = (Random(12345), 0);
    for _ in 0..count {
        let r = Request { write, start: random.below(sectors), sectors: 1 };
        // A pause of any length: the rotation has no memory of the request before.
        let start = now + random.below(30_000_000);
        now = disk.serve(start, &[r]);
        now = now.max(start);
    }
    let mut total: Ns = 0;
    for _ in 0..count {
        let r = Request { write, start: random.below(sectors), sectors: 1 };
        let start = now + random.below(30_000_000);
        now = disk.serve(start, &[r]);
        total += now - start;
    }
    total as f64 / count as f64 / 1e6
}

#[test]
fn random_access_is_average_seek_and_half_a_rotation() {
    for (name, sheet) in sheets() {
        let half_turn = 30_000.0 / sheet.rpm as f64;
        for (write, settle) in [(false, 0.0), (true, sheet.write_settle)] {
            let seen = random_mean(&mut bare(&sheet, false), write, 20_000);
            let expected = sheet.seek[1] + settle + half_turn;
            // Zones make requests fall on outer cylinders more often, so that seeks are a little shorter.
            assert!((0.93..1.02).contains(&(seen / expected)), "{name}: {seen:.2} ms, by the data sheet {expected:.2}");
        }
    }
}

#[test]
fn a_rotation_takes_what_the_speed_says() {
    for (name, sheet) in sheets() {
        let mut disk = bare(&sheet, false);
        let r = Request { write: false, start: 10, sectors: 1 };
        let first = disk.serve(0, &[r]);
        let second = disk.serve(first, &[r]);
        let turn = 60_000_000_000 / sheet.rpm;
        assert!(
            (second - first).abs_diff(turn) < 1000,
            "{name}: the same sector comes again after {} ns",
            second - first
        );
    }
}

/// MB/s of reading so many bytes from `start` on in requests of `each`.
fn sequential(model: &mut Model, start: u64, bytes: u64, each: u64, write: bool) -> f64 {
    let mut now = model.serve(0, &[Request { write, start: start / SECTOR, sectors: 1 }]);
    let began = now;
    for offset in (start..start + bytes).step_by(each as usize) {
        let r = Request { write, ..Request::read(offset, each) };
        now = model.serve(now, &[r]);
    }
    bytes as f64 / ((now - began) as f64 / 1e9) / 1e6
}

#[test]
fn sequential_reads_have_the_bandwidth_of_the_medium() {
    for (name, sheet) in sheets() {
        let turn = 60.0 / sheet.rpm as f64;
        // A whole cylinder passes in a turn for each head, and the skew at each change.
        let per_cylinder = sheet.surfaces as f64 * (turn + sheet.head_switch / 1e3)
            + (sheet.seek[0] - sheet.head_switch).max(0.0) / 1e3;
        for (at, track) in [(0.0, sheet.track_longest), (0.999, sheet.track_shortest)] {
            let medium = (sheet.surfaces * track * SECTOR) as f64 / per_cylinder / 1e6;
            let mut model = Model::Mechanical(Box::new(sheet.disk(false)));
            let start = (model.capacity() as f64 * at) as u64 / 4096 * 4096;
            // To the last cylinder, where there is nothing beyond to read.
            let bytes = (16 << 20).min((model.capacity() - start) / 65_536 * 65_536);
            let seen = sequential(&mut model, start, bytes, 65_536, false);
            assert!(
                (0.93..1.03).contains(&(seen / medium)),
                "{name} at {at}: {seen:.2} MB/s, by the data sheet {medium:.2} MB/s"
            );
        }
    }
    // What was said of today's drive.
    let mut model = find("hdd-2026").unwrap().model();
    let seen = sequential(&mut model, 0, 256 << 20, 1 << 20, false);
    assert!((235.0..265.0).contains(&seen), "{seen} MB/s");
}

#[test]
fn without_read_ahead_a_rotation_is_lost_between_requests() {
    let (_, sheet) = sheets().remove(0);
    let with = sequential(&mut Model::Mechanical(Box::new(sheet.disk(false))), 0, 4 << 20, 8192, false);
    let without = Sheet { buffer: 0, ..sheet };
    let without = sequential(&mut Model::Mechanical(Box::new(without.disk(false))), 0, 4 << 20, 8192, false);
    assert!(without < 0.8 && with > 3.0, "{without} and {with} MB/s");
}

/// Mean service time in milliseconds with a seek of a given time, over all angles.
fn service(sheet: &Sheet, kib: u64, seek: f64, zero_latency: bool) -> f64 {
    let flat = Sheet { seek: [seek; 3], track_shortest: sheet.track_longest, ..sheet.clone() };
    let mut disk = bare(&flat, zero_latency);
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

#[test]
fn larger_requests_cost_little_more_as_figure_2_of_1997_has_it() {
    for name in ["hp-c3653a", "barracuda", "atlas2"] {
        let Some(Kind::Mechanical(sheet)) = find(name).map(|p| p.kind) else { panic!("{name}") };
        for seek in [sheet.seek[0], sheet.seek[1]] {
            let at = |kib, immediate| service(&sheet, kib, seek, immediate);
            // Seek, half a rotation, and the sectors themselves.
            let turn = 60_000.0 / sheet.rpm as f64;
            let formula = seek + turn / 2.0 + 16.0 / sheet.track_longest as f64 * turn;
            assert!((at(8, false) / formula - 1.0).abs() < 0.06, "{name}: {} and {formula} ms", at(8, false));
            // The paper: under 10%, also with the shortest seek. That seek alone makes 16 sectors more than 10% on two of
            // its three disks, by its own table; with the average seek it holds on all.
            let limit = if seek == sheet.seek[1] { 1.10 } else { 1.20 };
            assert!(at(16, false) / at(8, false) < limit, "{name}, {seek} ms: {}", at(16, false) / at(8, false));
            assert!(at(64, true) < 2.0 * at(8, true), "{name}, {seek} ms: {} and {}", at(64, true), at(8, true));
            assert!(at(64, true) <= at(64, false) * 1.001, "taking sectors as they come never costs");
        }
    }
}

#[test]
fn priced_disks_meet_their_prices() {
    let run = |name: &str, write, bytes: u64, depth: usize| {
        let mut model = find(name).unwrap().model();
        let (mut now, rounds) = (0, 2000 / depth as u64);
        for i in 0..rounds {
            let batch: Vec<Request> =
                (0..depth as u64).map(|j| Request { write, ..Request::read((i * 64 + j) * bytes, bytes) }).collect();
            now = model.serve(now, &batch);
        }
        (rounds * depth as u64) as f64 / (now as f64 / 1e9)
    };
    assert!((900.0..1000.0).contains(&run("volume-1ms", false, 4096, 1)), "one at a time");
    assert!((1000.0..3001.0).contains(&run("volume-1ms", true, 4096, 50)), "many at once");
    assert!((1400.0..1600.0).contains(&run("sd-card", false, 4096, 1)), "A1 reads: {}", run("sd-card", false, 4096, 1));
    assert!((470.0..530.0).contains(&run("sd-card", true, 4096, 1)), "A1 writes: {}", run("sd-card", true, 4096, 1));
    let volume = run("volume-1ms", false, 1 << 20, 20) * 1048576.0 / 1e6;
    assert!((120.0..125.1).contains(&volume), "{volume} MB/s");
}

#[test]
fn the_write_cache_answers_at_once_and_writes_in_one_sweep() {
    let mut cached = find("hdd-2026").unwrap().model();
    let Some(Kind::Mechanical(sheet)) = find("hdd-2026").map(|p| p.kind) else { panic!() };
    let mut plain = Model::Mechanical(Box::new(Sheet { write_cache: 0, ..sheet }.disk(false)));
    let scattered: Vec<Request> =
        (0..500).map(|i| Request::write((i * 7919 % 500) * 8_000_000_000 / 4096 * 4096, 4096)).collect();
    let each = |model: &mut Model| scattered.iter().fold(0, |now, r| model.serve(now, &[*r]));
    let (taken, written) = (each(&mut cached), each(&mut plain));
    assert!(taken * 50 < written, "{taken} and {written}");
    let flushed = cached.flush(taken);
    assert!(flushed > taken && flushed < written, "{flushed} of {written}: in order of the disk");
    assert_eq!(cached.flush(flushed) - flushed, 100_000, "nothing is left");
    // What is in the cache is read from there.
    let now = cached.serve(flushed, &[Request::write(0, 1 << 20)]);
    let read = cached.serve(now, &[Request::read(4096, 4096)]);
    assert!(read - now < 200_000, "{}", read - now);
}
