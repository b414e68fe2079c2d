//! What a device can do.

use std::borrow::Cow;

use crate::dtype::{ComputeClass, DType};
use crate::units::{Bandwidth, Bytes, FlopRate, Nanos};

/// The capabilities of a device, as its data sheet states them.
///
/// What kernels reach is less: about 0.75-0.80 of the arithmetic and 0.85-0.92 of the memory
/// bandwidth. That is the business of the cost model. Host links are the exception: their figures
/// are what copies reach in one direction, since data sheets state the raw rate of the wire.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceSpec {
    /// The model of the device.
    pub name: Cow<'static, str>,
    /// Its memory.
    pub memory: Bytes,
    /// Memory bandwidth.
    pub bandwidth: Bandwidth,
    /// Peak single-precision arithmetic, without matrix units.
    pub f32_rate: FlopRate,
    /// Peak half-precision arithmetic, dense.
    pub half_rate: FlopRate,
    /// Peak eight-bit float arithmetic, dense; the half-precision rate where there are no units
    /// for it.
    pub f8_rate: FlopRate,
    /// Streaming multiprocessors, or cores of a CPU.
    pub sm_count: u32,
    /// The last-level cache.
    pub l2: Bytes,
    /// The link to the host, one way.
    pub host_link: Bandwidth,
    /// The latency of that link.
    pub host_latency: Nanos,
    /// The links to the other devices of the node together, one way; zero without any.
    pub nvlink: Bandwidth,
    /// The latency of one hop on it.
    pub nvlink_latency: Nanos,
    /// In-order queues that the scheduler may fill.
    pub lanes: u16,
}

/// What copies reach on PCIe 4.0 with 16 lanes, in one direction.
const PCIE_4: Bandwidth = Bandwidth::gb_per_s(25);
/// What copies reach on PCIe 5.0 with 16 lanes, in one direction.
const PCIE_5: Bandwidth = Bandwidth::gb_per_s(50);
/// Half of the ~16 us that an empty send between two H100 of a node takes in the profiles of
/// Vidur (Agrawal et al. 2024): the way from one device to another has two hops.
const HOP: Nanos = Nanos::us(8);

impl DeviceSpec {
    /// A device with one lane, for which memory, bandwidth and half-precision rate are known. The
    /// other rates are set to the half-precision one, the links to PCIe 4.0 and none.
    pub fn custom(name: impl Into<Cow<'static, str>>, memory: Bytes, bandwidth: Bandwidth, rate: FlopRate) -> Self {
        Self {
            name: name.into(),
            memory,
            bandwidth,
            f32_rate: rate,
            half_rate: rate,
            f8_rate: rate,
            sm_count: 1,
            l2: Bytes::ZERO,
            host_link: PCIE_4,
            host_latency: HOP,
            nvlink: Bandwidth::ZERO,
            nvlink_latency: HOP,
            lanes: 1,
        }
    }

    /// NVIDIA A100 SXM 80 GB. Source: NVIDIA's data sheet; NVLink is half of the 600 GB/s that it
    /// states for both ways.
    pub fn a100_sxm_80() -> Self {
        Self {
            f32_rate: FlopRate::gflops(19_500),
            sm_count: 108,
            l2: Bytes::mib(40),
            nvlink: Bandwidth::gb_per_s(300),
            ..Self::custom("A100 SXM 80", Bytes::gb(80), Bandwidth::gb_per_s(2039), FlopRate::tflops(312))
        }
    }

    /// NVIDIA H100 SXM. Source: NVIDIA's data sheet; NVLink is half of the 900 GB/s that it states
    /// for both ways.
    pub fn h100_sxm() -> Self {
        Self {
            f32_rate: FlopRate::tflops(67),
            f8_rate: FlopRate::tflops(1979),
            sm_count: 132,
            l2: Bytes::mib(50),
            host_link: PCIE_5,
            nvlink: Bandwidth::gb_per_s(450),
            ..Self::custom("H100 SXM", Bytes::gb(80), Bandwidth::gb_per_s(3350), FlopRate::tflops(989))
        }
    }

    /// NVIDIA H200 SXM: an H100 with 141 GB at 4.8 TB/s. Source: NVIDIA's data sheet.
    pub fn h200_sxm() -> Self {
        Self {
            name: "H200 SXM".into(),
            memory: Bytes::gb(141),
            bandwidth: Bandwidth::gb_per_s(4800),
            ..Self::h100_sxm()
        }
    }

    /// NVIDIA B200. Source: NVIDIA's data sheet, of whose 7.7-8.0 TB/s the lower figure is taken;
    /// NVLink is half of the 1800 GB/s that it states for both ways.
    pub fn b200() -> Self {
        Self {
            f32_rate: FlopRate::tflops(75),
            f8_rate: FlopRate::tflops(4500),
            sm_count: 148,
            l2: Bytes::mib(126),
            host_link: PCIE_5,
            nvlink: Bandwidth::gb_per_s(900),
            ..Self::custom("B200", Bytes::gb(180), Bandwidth::gb_per_s(7700), FlopRate::tflops(2250))
        }
    }

    /// NVIDIA L4. Source: NVIDIA's data sheet, dense rates.
    pub fn l4() -> Self {
        Self {
            f32_rate: FlopRate::gflops(30_300),
            f8_rate: FlopRate::tflops(242),
            sm_count: 58,
            l2: Bytes::mib(48),
            ..Self::custom("L4", Bytes::gb(24), Bandwidth::gb_per_s(300), FlopRate::tflops(121))
        }
    }

    /// NVIDIA GeForce RTX 4090. Source: NVIDIA's Ada architecture paper, dense rates with FP32
    /// accumulation.
    pub fn rtx_4090() -> Self {
        Self {
            f32_rate: FlopRate::gflops(82_600),
            f8_rate: FlopRate::tflops(330),
            sm_count: 128,
            l2: Bytes::mib(72),
            ..Self::custom("RTX 4090", Bytes::gb(24), Bandwidth::gb_per_s(1008), FlopRate::tflops(165))
        }
    }

    /// A CPU that acts as a device: one lane per core, and memory of its own carved out of the
    /// host's. `rate` is the arithmetic of all `cores` together.
    pub fn cpu(cores: u16, memory: Bytes, bandwidth: Bandwidth, rate: FlopRate) -> Self {
        Self {
            sm_count: u32::from(cores),
            host_link: bandwidth,
            host_latency: Nanos::us(1),
            lanes: cores,
            ..Self::custom("CPU", memory, bandwidth, rate)
        }
    }

    /// This device with `lanes` in-order queues.
    #[must_use]
    pub fn with_lanes(mut self, lanes: u16) -> Self {
        self.lanes = lanes;
        self
    }

    /// This device with `memory` of memory.
    #[must_use]
    pub fn with_memory(mut self, memory: Bytes) -> Self {
        self.memory = memory;
        self
    }

    /// What carries data to another device of its node, and the latency of one hop: NVLink, or the link to the host
    /// where there is none.
    pub fn peer_link(&self) -> (Bandwidth, Nanos) {
        match self.nvlink {
            Bandwidth::ZERO => (self.host_link, self.host_latency),
            link => (link, self.nvlink_latency),
        }
    }

    /// Peak arithmetic with operands of `dtype`.
    pub fn rate(&self, dtype: DType) -> FlopRate {
        match dtype.compute_class() {
            ComputeClass::F32 => self.f32_rate,
            ComputeClass::Half => self.half_rate,
            ComputeClass::F8 => self.f8_rate,
        }
    }
}
