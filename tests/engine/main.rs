//! The engine through its public interface. One program for all of these, because linking costs more than running: a
//! property is a module, named after what holds.

#[path = "../reference/mod.rs"]
mod reference;
#[path = "../support/mod.rs"]
mod support;

mod all_keys_are_legal;
mod any_number_of_engines;
mod at_the_memory_limit;
mod clean_rows_stay;
mod f32_equals_plain;
mod from_any_thread;
mod model;
mod optimizers;
mod pulls_change_nothing;
mod pushes_are_applied_once;
mod refusals;
mod rows_in_any_format;
mod same_changes_same_bits;
mod saved_while_changing;
mod state_travels;
mod stochastic_rounding;
