//! Any bit of the log may flip: it is noticed. In the last group it cuts that group off, which says so; anywhere else the
//! shard does not start, and nothing on disk is changed.

use hotrow::durability::LogError;
use hotrow::{Policy, TableSpec};

use crate::disk::{Logged, OPTIONS, SimDisk, flip, wait};
use crate::support::changes::{Owned, two_tables};
use crate::support::random::Random;
use crate::support::{formats, optimizers};

#[test]
fn a_thousand_bits() {
    let disk = SimDisk::default();
    let logged = Logged::start(&disk, OPTIONS).unwrap();
    let tables: Vec<TableSpec> = two_tables(formats()[3], Policy::Lru, optimizers()[0]);
    let mut random = Random(5);
    for table in &tables {
        logged.engine.create(table).unwrap();
    }
    let mut before_last = 0;
    for _ in 0..40 {
        before_last = logged.engine.last_lsn().0;
        let lsn = Owned::random(&mut random, &tables, 3).apply(&logged.engine).unwrap();
        wait(logged.log.safe(lsn)).unwrap();
    }
    let last = logged.engine.last_lsn().0;
    drop(logged);
    let files = disk.bytes();
    assert!(files.len() > 3, "{} segments", files.len());
    let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    let (mut cuts, mut refusals) = (0, 0);
    for _ in 0..1000 {
        let bit = random.below(8 * total as u64) as usize;
        let (flipped, file, byte) = flip(&files, bit);
        let disk = SimDisk::of(&flipped);
        match Logged::start(&disk, OPTIONS) {
            Ok(logged) => {
                let cut = logged.cut.as_ref().unwrap_or_else(|| panic!("byte {byte} of file {file} was not noticed"));
                assert_eq!(file, files.len() - 1, "only the last group may be cut off");
                assert!((cut.from..cut.to).contains(&(byte as u64)));
                assert_eq!((logged.replayed, logged.engine.last_lsn().0), (before_last, before_last));
                cuts += 1;
            }
            Err(LogError::Damaged { .. } | LogError::Missing { .. }) => {
                assert_eq!(disk.bytes(), flipped, "a refused start changes nothing");
                refusals += 1;
            }
            Err(other) => panic!("byte {byte} of file {file}: {other}"),
        }
    }
    println!("1000 bits of {total} bytes, {last} changes: {refusals} starts refused, {cuts} last groups cut off");
    assert!(cuts > 0 && refusals > 800, "{cuts} cuts, {refusals} refusals");
}
