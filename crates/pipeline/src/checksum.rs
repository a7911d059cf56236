//! Checksums of policies that a user hands in, so that a run notices other weights at the same place.

use std::fs;
use std::path::Path;

use record::failure::Result;

use crate::disk;

/// Checksum of a policy's weight files.
pub fn digest(directory: &Path) -> Result<u32> {
    let mut files = Vec::new();
    for folder in [directory.join("current"), directory.to_path_buf()] {
        let names = if folder.is_dir() { disk::names(&folder)? } else { Vec::new() };
        let weights =
            names.into_iter().filter(|name| name.ends_with(".safetensors") && !name.starts_with('.'));
        files.extend(weights.map(|name| folder.join(name)));
    }
    let mut bytes = Bytes::default();
    for file in files {
        let mut reader = fs::File::open(&file).map_err(|error| disk::failed("read", &file, &error))?;
        std::io::copy(&mut reader, &mut bytes).map_err(|error| disk::failed("read", &file, &error))?;
    }
    Ok(bytes.checksum())
}

/// POSIX `cksum` of the bytes.
pub fn checksum(bytes: impl AsRef<[u8]>) -> u32 {
    let mut all = Bytes::default();
    all.add(bytes.as_ref());
    all.checksum()
}

/// Bytes to checksum.
#[derive(Default)]
struct Bytes {
    state: u32,
    count: u64,
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut state, mut bit) = ((byte as u32) << 24, 0);
        while bit < 8 {
            state = if state >> 31 == 1 { (state << 1) ^ 0x04c1_1db7 } else { state << 1 };
            bit += 1;
        }
        table[byte] = state;
        byte += 1;
    }
    table
};

impl Bytes {
    fn push(&mut self, byte: u8) {
        self.state = (self.state << 8) ^ TABLE[usize::from((self.state >> 24) as u8 ^ byte)];
    }

    fn add(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.push(*byte));
        self.count += bytes.len() as u64;
    }

    fn checksum(mut self) -> u32 {
        let mut count = self.count;
        while count > 0 {
            self.push(count as u8);
            count >>= 8;
        }
        !self.state
    }
}

impl std::io::Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_cksum() {
        assert_eq!(checksum(""), 4_294_967_295);
        assert_eq!(checksum("123456789"), 930_766_865);
    }
}
