//! The folder of a disk cache as a whole, damaged: see `body`, which the fuzz target `cache_folder` also runs.

#[path = "cache_folder/body.rs"]
mod body;
mod disk;

#[test]
fn it_holds_for_the_seeds() {
    sigma_testkit::for_inputs_of("cache_folder", body::cache_folder);
}
