//! Rights that the process gives up permanently: files outside some folders ([`files`]), and system calls
//! ([`calls`]).

pub mod calls;
pub mod files;
