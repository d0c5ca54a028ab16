//! The models against their data sheets, measured as a benchmark program would measure a disk: by requests and the time
//! they take.

use cffs_disk::measure::{
    medium, random_access, requests_per_second, rotation, sequential, service, service_by_data_sheet, without_overheads,
};
use cffs_disk::profiles::{DataSheet, Kind, all, find};
use cffs_disk::{Model, Request};

fn sheets() -> Vec<(&'static str, DataSheet)> {
    let sheet = |kind| match kind {
        Kind::Mechanical(sheet) => Some(sheet),
        Kind::FlatCost(_) => None,
    };
    all().into_iter().filter_map(|p| Some((p.name, sheet(p.kind)?))).collect()
}

#[test]
fn random_access_is_average_seek_and_half_a_rotation() {
    for (name, sheet) in sheets() {
        let half_turn = 30_000.0 / sheet.rpm as f64;
        for (write, settle) in [(false, 0.0), (true, sheet.write_settle)] {
            let seen = random_access(&mut without_overheads(&sheet, false), write, 20_000);
            let expected = sheet.seek[1] + settle + half_turn;
            // Zones make requests fall on outer cylinders more often, so that seeks are a little shorter.
            assert!((0.93..1.02).contains(&(seen / expected)), "{name}: {seen:.2} ms, by the data sheet {expected:.2}");
        }
    }
}

#[test]
fn a_rotation_takes_what_the_speed_says() {
    for (name, sheet) in sheets() {
        let seen = rotation(&mut without_overheads(&sheet, false));
        let turn = 60_000_000_000 / sheet.rpm;
        assert!(seen.abs_diff(turn) < 1000, "{name}: the same sector comes again after {seen} ns");
    }
}

#[test]
fn sequential_reads_have_the_bandwidth_of_the_medium() {
    for (name, sheet) in sheets() {
        for (at, track) in [(0.0, sheet.track_longest), (0.999, sheet.track_shortest)] {
            let medium = medium(&sheet, track);
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
    let without = DataSheet { buffer: 0, ..sheet };
    let without = sequential(&mut Model::Mechanical(Box::new(without.disk(false))), 0, 4 << 20, 8192, false);
    assert!(without < 0.8 && with > 3.0, "{without} and {with} MB/s");
}

#[test]
fn larger_requests_cost_little_more_as_figure_2_of_1997_has_it() {
    for name in ["hp-c3653a", "barracuda", "atlas2"] {
        let Some(Kind::Mechanical(sheet)) = find(name).map(|p| p.kind) else { panic!("{name}") };
        for seek in [sheet.seek[0], sheet.seek[1]] {
            let at = |kib, immediate| service(&sheet, kib, seek, immediate);
            let formula = service_by_data_sheet(&sheet, 8, seek);
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
fn flat_cost_disks_meet_their_costs() {
    let run = |name: &str, write, bytes: u64, depth| {
        requests_per_second(&mut find(name).unwrap().model(), write, bytes, depth)
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
    let mut plain = Model::Mechanical(Box::new(DataSheet { write_cache: 0, ..sheet }.disk(false)));
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

#[test]
fn what_was_read_before_costs_only_the_first_write_a_way() {
    let (_, sheet) = sheets().remove(0);
    let writes = |read_first: bool| {
        let mut model = Model::Mechanical(Box::new(sheet.disk(false)));
        let far = model.capacity() / 4096 * 4096 - (1 << 20);
        let mut now = if read_first { model.serve(0, &[Request::read(far, 4096)]) } else { 0 };
        now = model.serve(now, &[Request::write(0, 4096)]);
        let begin = now;
        for i in 1..100 {
            now = model.serve(now, &[Request::write(i * 8192, 4096)]);
        }
        now - begin
    };
    // The arm went to the first write and stays there; only the angle differs, by what rounding makes of it.
    let (plain, after) = (writes(false), writes(true));
    assert!(after.abs_diff(plain) < plain / 100, "{after} after a read, {plain} without one");
}

/// Milliseconds of a write of 4 KiB at each of these places, one after the other, with a flush after each.
fn write_each(model: &mut Model, places: &[u64]) -> f64 {
    let mut now = model.flush(0);
    let begin = now;
    for place in places {
        now = model.serve(now, &[Request::write(*place, 4096)]);
        now = model.flush(now);
    }
    (now - begin) as f64 / 1e6 / places.len() as f64
}

/// MB/s of writing `bytes` from the beginning on, until they are on the medium.
fn in_order(model: &mut Model, bytes: u64) -> f64 {
    let begin = model.flush(0);
    let mut now = begin;
    for at in (0..bytes).step_by(1 << 20) {
        now = model.serve(now, &[Request::write(at, 1 << 20)]);
    }
    bytes as f64 / ((model.flush(now) - begin) as f64 / 1e9) / 1e6
}

/// A disk whose first `bytes` hold data.
fn filled(name: &str, bytes: u64) -> Model {
    let mut model = find(name).unwrap().model();
    in_order(&mut model, bytes);
    model
}

#[test]
fn media_in_units_take_writes_in_order_as_fast_as_others() {
    let plain = in_order(&mut find("hdd-2026").unwrap().model(), 256 << 20);
    for (name, least) in [("smr", plain * 0.85), ("flash", 17.0)] {
        let mut model = find(name).unwrap().model();
        // The second time over what is there.
        for _ in 0..2 {
            let seen = in_order(&mut model, 256 << 20);
            assert!(seen >= least, "{name}: {seen} MB/s, {least} expected");
        }
        let read = sequential(&mut model, 0, 64 << 20, 1 << 20, false);
        assert!(read > if name == "smr" { 230.0 } else { 60.0 }, "{name}: {read} MB/s");
    }
}

#[test]
fn a_write_somewhere_costs_the_copy_of_its_unit() {
    // More units than can be open, each in turn, so that every write closes another one.
    let places = |unit: u64| (0..32).map(|i| (1 + i * 5 % 16) * unit + unit / 2).collect::<Vec<u64>>();
    let seen = write_each(&mut filled("smr", 1 << 30), &places(32 << 20));
    // Read and written at 250 MB/s.
    let band = 2.0 * (32 << 20) as f64 / 250e6 * 1e3;
    assert!((band..band * 1.3).contains(&seen), "{seen} ms for a band of {band} ms");
    let seen = write_each(&mut filled("flash", 256 << 20), &places(4 << 20));
    let block = (4 << 20) as f64 / 16e6 * 1e3;
    assert!((block * 0.8..block * 1.2).contains(&seen), "{seen} ms for a block of {block} ms");
}

#[test]
fn writes_in_order_within_a_unit_share_its_copy() {
    let places: Vec<u64> = (0..128).map(|i| (64 << 20) + i * 256 * 1024).collect();
    let mut model = filled("smr", 256 << 20);
    let sorted = write_each(&mut model, &places);
    let mut turned = places.clone();
    turned.reverse();
    let backwards = write_each(&mut filled("smr", 256 << 20), &turned);
    assert!(sorted * 4.0 < backwards, "{sorted} and {backwards} ms");
}

#[test]
fn a_partition_lies_where_it_begins_and_discards_reach_the_medium() {
    use cffs_device::{Device, IoKind};
    use cffs_disk::{Clock, SimDevice};
    use std::sync::Arc;
    let disk = |start| SimDevice::partition(find("smr").unwrap().model(), start, 256 << 20, Arc::new(Clock::default()));
    // A band's worth at the beginning of the partition, then a block in the middle of it.
    let run = |start: u64, discard: bool| {
        let device = disk(start);
        device.write_at(IoKind::Data, 0, &vec![1; 32 << 20]).unwrap();
        device.flush().unwrap();
        if discard {
            device.discard(0, 32 << 20).unwrap();
        }
        let before = device.counters();
        device.write_at(IoKind::Data, 8 << 20, &[2; 4096]).unwrap();
        device.flush().unwrap();
        (device.counters() - before).seconds()
    };
    let [plain, shingled, discarded] = [run(0, false), run(32 << 20, false), run(32 << 20, true)];
    assert!(plain * 3.0 < shingled && discarded * 3.0 < shingled, "{plain}, {shingled}, {discarded} s");
    assert!(disk(0).can_discard());
    let other = SimDevice::new(find("hdd-2026").unwrap().model(), 1 << 20, Arc::new(Clock::default()));
    assert!(!other.can_discard());
}
