//! Rights that the process gives up for good: files outside some folders ([`files`]), and system calls ([`calls`]).

pub mod calls;
pub mod files;
