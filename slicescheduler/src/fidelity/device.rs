//! Published facts of devices, and what exchange between them takes.

use super::{FidelityError, Run};
use crate::gmg::cluster::DeviceSpec;
use crate::gmg::units::{Bandwidth, Bytes, FlopRate};

/// What is known of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceFacts {
    /// A part of the name that its driver gives.
    pub name: &'static str,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory in bytes, as the driver reports it.
    pub memory: u64,
    /// All-reduce between two of them: (bytes, nanoseconds).
    pub all_reduce: &'static [(f64, f64)],
}

/// Multiprocessors from the makers' data sheets. Memory of the two RTX cards as their drivers reported it to vLLM
/// (metadata of LLMServingSim's runs), of the others the data sheet's. All-reduce of two ranks over PCIe with NCCL in
/// graphs: LLMServingSim, profiler/perf/RTXPRO6000/hardware.yaml (MIT).
const KNOWN: [DeviceFacts; 7] = [
    DeviceFacts { name: "RTX 4090", multiprocessors: 128, memory: 25_250_627_584, all_reduce: &[] },
    DeviceFacts {
        name: "RTX PRO 6000 Blackwell",
        multiprocessors: 188,
        memory: 101_976_440_832,
        all_reduce: &[
            (4096.0, 12_713.0),
            (65_536.0, 14_756.0),
            (262_144.0, 21_717.0),
            (524_288.0, 29_845.0),
            (1_048_576.0, 41_041.0),
            (2_097_152.0, 67_305.0),
            (4_194_304.0, 124_868.0),
            (8_388_608.0, 240_590.0),
            (20_971_520.0, 587_085.0),
        ],
    },
    DeviceFacts { name: "H100", multiprocessors: 132, memory: 80 << 30, all_reduce: &[] },
    DeviceFacts { name: "H200", multiprocessors: 132, memory: 141 << 30, all_reduce: &[] },
    DeviceFacts { name: "B200", multiprocessors: 148, memory: 180 << 30, all_reduce: &[] },
    DeviceFacts { name: "A100", multiprocessors: 108, memory: 80 << 30, all_reduce: &[] },
    DeviceFacts { name: "L4", multiprocessors: 58, memory: 24 << 30, all_reduce: &[] },
];

impl DeviceFacts {
    /// The facts of the device that its driver calls `name`.
    pub fn of(name: &str) -> Option<Self> {
        let words: Vec<_> = name.split([' ', '-']).collect();
        let is_named = |known: &&Self| {
            let known: Vec<_> = known.name.split(' ').collect();
            words.windows(known.len()).any(|part| part == known)
        };
        KNOWN.iter().find(is_named).copied()
    }

    /// What the device can do: where several are called so, the fastest of them. Nothing is faster.
    pub fn peaks(&self) -> Option<DeviceSpec> {
        Some(match self.name {
            "RTX 4090" => DeviceSpec::rtx_4090(),
            // NVIDIA RTX Blackwell PRO architecture paper, dense rates with FP32 accumulation, Workstation Edition.
            "RTX PRO 6000 Blackwell" => {
                let (memory, bandwidth) = (Bytes(self.memory), Bandwidth::gb_per_s(1792));
                let mut spec = DeviceSpec::custom(self.name, memory, bandwidth, FlopRate::tflops(504));
                spec.f32_rate = FlopRate::tflops(126);
                spec.f8_rate = FlopRate::tflops(1008);
                spec.l2 = Bytes::mib(128);
                spec
            }
            // The NVL variant has the faster memory: NVIDIA's data sheet.
            "H100" => {
                let mut spec = DeviceSpec::h100_sxm();
                spec.bandwidth = Bandwidth::gb_per_s(3938);
                spec
            }
            "H200" => DeviceSpec::h200_sxm(),
            "B200" => DeviceSpec::b200(),
            "A100" => DeviceSpec::a100_sxm_80(),
            "L4" => DeviceSpec::l4(),
            _ => return None,
        })
    }
}

/// Times of exchange between devices.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeTimes {
    /// (bytes, nanoseconds), ascending.
    pub times: Vec<(f64, f64)>,
    /// Where they come from.
    pub source: &'static str,
}

/// Times of exchange between `ranks` devices.
///
/// From the device's own measurements if there are any for as many ranks; else a ring over the links that the run's
/// `config.json` states: twice `ranks - 1` steps, each with the link's latency and its share of the bytes.
///
/// # Errors
/// If neither is known.
pub fn exchange_times(device: Option<&DeviceFacts>, run: &Run, ranks: u32) -> Result<ExchangeTimes, FidelityError> {
    if let Some(device) = device.filter(|device| ranks == 2 && !device.all_reduce.is_empty()) {
        return Ok(ExchangeTimes { times: device.all_reduce.to_vec(), source: "NCCL measurements of the device" });
    }
    let Some((bandwidth, latency)) = run.link() else {
        let what = "the link between devices";
        let remedy = "state link_bw (GB/s) and link_latency (ns) in config.json";
        return Err(FidelityError::Unknown { what, run: run.folder.clone(), remedy });
    };
    let steps = 2.0 * f64::from(ranks - 1);
    let time = |bytes: f64| steps * (latency + bytes / f64::from(ranks) / bandwidth);
    Ok(ExchangeTimes { times: vec![(0.0, time(0.0)), (1e9, time(1e9))], source: "the links in config.json" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_whole_words_of_its_name() {
        let multiprocessors = |name| DeviceFacts::of(name).map(|facts| facts.multiprocessors);
        assert_eq!(multiprocessors("NVIDIA GeForce RTX 4090"), Some(128));
        assert_eq!(multiprocessors("NVIDIA RTX PRO 6000 Blackwell Server Edition"), Some(188));
        assert_eq!(multiprocessors("NVIDIA H100 80GB HBM3"), Some(132));
        assert_eq!(multiprocessors("NVIDIA A100-SXM4-80GB"), Some(108));
        assert_eq!(multiprocessors("NVIDIA L40S"), None);
    }

    #[test]
    fn every_known_device_has_peaks() {
        for facts in KNOWN {
            let spec = facts.peaks().unwrap();
            assert_eq!(spec.name.split(' ').next(), facts.name.split(' ').next());
            let (stated, known) = (spec.memory.get() as f64, facts.memory as f64);
            assert!((stated / known - 1.0).abs() < 0.1, "{}: {stated} {known}", facts.name);
        }
    }
}
