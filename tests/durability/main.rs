//! Nothing lost: log and checkpoints against disks that lose power, fill up, fail and rot.

mod disk;
mod store;

#[path = "../reference/mod.rs"]
mod reference;
#[path = "../support/mod.rs"]
mod support;

mod a_flipped_bit_is_noticed;
mod checkpoint_files;
mod failing_disks;
mod power_loss;
mod replay_gives_the_same_bits;
