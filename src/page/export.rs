//! A stage as the bytes of a `.npy` file, collected block by block.

use std::task::Poll;

use llama_trace_core::error::{Error, Result};
use llama_trace_core::trace::{Block, InOrder, Region, Site, Source, Values, source};

/// Maximum size of a file, in bytes. The page holds it in memory twice.
const MOST: usize = 512 << 20;

/// An export under way.
#[derive(Debug)]
pub struct Saving {
    site: Site,
    order: InOrder,
    bytes: Vec<u8>,
}

impl Saving {
    /// Begins the file of the whole stage at `site`; `block` gives its shape.
    ///
    /// # Errors
    /// [`Error::Output`] if the file would be too large.
    pub fn begin(site: Site, block: &Block) -> Result<Self> {
        let shape = &block.shape;
        let size = shape.iter().product::<usize>().saturating_mul(site.stage.value_bytes());
        if size > MOST {
            return Err(Error::output("the stage is too large for a download from this page")
                .expected(format!("at most {MOST} bytes"))
                .found(format!("{size} bytes"))
                .next("use `llama-trace export` in a terminal"));
        }
        let mut bytes = header(site, shape);
        bytes.reserve(size);
        Ok(Self { site, order: InOrder::new(shape), bytes })
    }

    /// The exported site.
    pub fn site(&self) -> Site {
        self.site
    }

    /// The name of the file: `p0_L1_softmax.npy`.
    pub fn name(&self) -> String {
        format!("{}.npy", self.site.to_string().replace(['/', ':'], "_"))
    }

    /// The part that was written, in percent.
    pub fn percent(&self) -> usize {
        self.order.percent()
    }

    /// The region of the next value to write.
    pub fn next(&self) -> Region {
        self.order.next()
    }

    /// Takes in the next block from the source, if it is there. Returns whether the file is complete.
    ///
    /// # Errors
    /// The source's error.
    pub fn go_on(&mut self, source: &mut dyn Source) -> Result<bool> {
        let Poll::Ready(block) = source::block(source, self.site, &self.next()) else { return Ok(false) };
        let block = block?;
        while let Some((_, values)) = self.order.take(&block) {
            match values {
                Values::F32(values) => self.bytes.extend_from_slice(bytemuck::cast_slice(values)),
                Values::I64(values) => self.bytes.extend_from_slice(bytemuck::cast_slice(values)),
                Values::I8(values) => self.bytes.extend_from_slice(bytemuck::cast_slice(values)),
            }
        }
        Ok(self.order.is_done())
    }

    /// The bytes of the file.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The header of a `.npy` file, version 1.0. The values begin at a multiple of 64 bytes.
fn header(site: Site, shape: &[usize]) -> Vec<u8> {
    let kind = match site.stage {
        stage if stage.is_ids() => "<i8",
        stage if stage.is_int8() => "|i1",
        _ => "<f4",
    };
    let lengths: Vec<_> = shape.iter().map(usize::to_string).collect();
    // A tuple of one number has a comma.
    let comma = if lengths.len() == 1 { "," } else { "" };
    let mut text =
        format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}{comma}), }}", lengths.join(", "));
    let before = b"\x93NUMPY\x01\x00".len() + 2;
    while !(before + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}
