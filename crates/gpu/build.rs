//! Compiles the CUDA kernels if the feature `cuda` is on, and links them.
//!
//! The build reads `NVCC` or `CUDA_HOME`, `CUDA_COMPUTE_CAP` (one of [`CAPABILITIES`]) and `FLASHINFER_INCLUDE`. For 9.0
//! it also reads `CUTLASS_INCLUDE`. The script `scripts/cuda-toolkit.sh` assembles a toolkit and sets them. The variable
//! `CANDLEPOWER_NVCC` replaces the compiler for these kernels alone, such as `tests/emulator/nvcc`, which compiles them for
//! the CPU.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::{env, fs, iter, thread};

use head_dims::DEVICE_HEAD_DIMS;

/// Where the kernels are.
const KERNELS: &str = "src/cuda/kernels";

/// Sources that are compiled once.
const SOURCES: [&str; 21] = [
    "attention_latent",
    "ordered_attention",
    "fp8_decode",
    "expert_product",
    "linear_attention",
    "packed_rows",
    "rows_product",
    "packed",
    "rows",
    "activation",
    "qkv",
    "latent",
    "sampling",
    "experts",
    "token_counts",
    "gemv",
    "normed_gemv",
    "fp8",
    "fp8_product",
    "elements",
    "short_conv",
];

/// Sources that are compiled once per head dimension, as separate jobs that run in parallel.
const SOURCES_PER_HEAD_DIM: [&str; 2] = ["attention_prefill", "attention_decode"];
/// A source that is compiled once for each of [`HOPPER_HEAD_DIMS`], for Hopper with CUTLASS's headers. Without these its
/// functions refuse.
const HOPPER_SOURCE: &str = "attention_hopper";
/// The head widths that FlashInfer's kernel for Hopper has.
const HOPPER_HEAD_DIMS: [usize; 3] = [64, 128, 256];
/// The capability that this kernel is for.
const HOPPER: &str = "90";
/// The head widths that the memory plan knows, too.
#[path = "../layout/src/head_dims.rs"]
mod head_dims;
const HEAD_DIMS_FILE: &str = "../layout/src/head_dims.rs";

/// Compute capabilities without their point, and nvcc's names for them.
const CAPABILITIES: [(&str, &str); 6] =
    [("80", "80"), ("86", "86"), ("89", "89"), ("90", "90a"), ("100", "100"), ("120", "120")];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={HEAD_DIMS_FILE}");
    println!("cargo::rustc-check-cfg=cfg(hopper_attention)");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    match Toolkit::find().and_then(|toolkit| compile(&toolkit)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={message}");
            ExitCode::FAILURE
        }
    }
}

/// The compiler and its flags.
struct Toolkit {
    nvcc: PathBuf,
    flags: Vec<String>,
    /// Additional flags for the kernel of Hopper, if it can be compiled.
    hopper: Option<Vec<String>>,
}

impl Toolkit {
    fn find() -> Result<Self, String> {
        let home = variable("CUDA_HOME").map(PathBuf::from);
        let own = variable("CANDLEPOWER_NVCC");
        if let Some(folder) = own.as_deref().and_then(|nvcc| Path::new(nvcc).parent()) {
            println!("cargo::rerun-if-changed={}", folder.display());
            // That compiler reads the names of the kernels that are watched for races from this variable.
            println!("cargo::rerun-if-env-changed=CANDLEPOWER_WATCHED_KERNELS");
        }
        let is_emulated = own.is_some();
        let nvcc = match (own.or(variable("NVCC")), &home) {
            (Some(nvcc), _) => PathBuf::from(nvcc),
            (None, Some(home)) => home.join("bin/nvcc"),
            (None, None) => {
                return Err("the feature `cuda` needs nvcc: run scripts/cuda-toolkit.sh DIR and `. DIR/env.sh`, or set CUDA_HOME".into());
            }
        };
        let Some(flashinfer) = variable("FLASHINFER_INCLUDE") else {
            return Err("the feature `cuda` needs FlashInfer's headers: run scripts/cuda-toolkit.sh DIR and `. DIR/env.sh`, or set FLASHINFER_INCLUDE".into());
        };
        if !Path::new(&flashinfer).join("flashinfer/attention/prefill.cuh").exists() {
            return Err(format!("FLASHINFER_INCLUDE={flashinfer} holds no flashinfer/attention"));
        }
        // 177 warns of functions that are not used, of which FlashInfer's headers have many.
        let mut flags: Vec<String> = [
            "-std=c++17",
            "-O3",
            "--expt-relaxed-constexpr",
            // Rust links position-independent programs.
            "-Xcompiler=-fPIC",
            "-diag-suppress=177",
        ]
        .map(String::from)
        .into();
        let capability = variable("CUDA_COMPUTE_CAP").unwrap_or_default();
        flags.extend(architecture(&capability)?);
        // FlashInfer may need a newer CCCL than the toolkit's own; this folder contains it.
        if let Some(cccl) = home.map(|home| home.join("include/cccl")).filter(|dir| dir.is_dir()) {
            flags.push(format!("-I{}", cccl.display()));
        }
        flags.extend(["-isystem".into(), flashinfer]);
        let cutlass = variable("CUTLASS_INCLUDE").filter(|_| capability == HOPPER && !is_emulated);
        Ok(Self { nvcc, flags, hopper: cutlass.map(hopper_flags).transpose()? })
    }

    fn compile(&self, job: &Job) -> Result<(), String> {
        let status = Command::new(&self.nvcc)
            .args(&self.flags)
            .args(&job.own_flags)
            .arg("-c")
            .arg(&job.source)
            .arg("-o")
            .arg(&job.object)
            .status()
            .map_err(|error| format!("cannot start {}: {error}", self.nvcc.display()))?;
        if status.success() {
            return Ok(());
        }
        Err(format!("nvcc could not compile {}; its messages are above", job.source.display()))
    }
}

/// nvcc's flags for a compute capability. The sources and the library get it too. The suffix `a` enables instructions
/// that only Hopper has.
fn architecture(capability: &str) -> Result<[String; 2], String> {
    let Some((capability, name)) = CAPABILITIES.iter().find(|(known, _)| *known == capability)
    else {
        let known = CAPABILITIES.map(|(known, _)| known).join(", ");
        return Err(format!(
            "CUDA_COMPUTE_CAP={capability}: it must say which GPUs to compile for, one of {known}"
        ));
    };
    println!("cargo::rustc-env=CANDLEPOWER_COMPUTE_CAPABILITY={capability}");
    Ok([
        format!("-gencode=arch=compute_{name},code=sm_{name}"),
        format!("-DCANDLEPOWER_COMPUTE_CAP={capability}"),
    ])
}

/// nvcc's additional flags for the kernel of Hopper, with CUTLASS's headers in the folder `cutlass`.
fn hopper_flags(cutlass: String) -> Result<Vec<String>, String> {
    if !Path::new(&cutlass).join("cute/tensor.hpp").exists() {
        return Err(format!("CUTLASS_INCLUDE={cutlass} holds no cute/tensor.hpp"));
    }
    println!("cargo::rustc-cfg=hopper_attention");
    // Exponentials take one instruction then, as FlashInfer's other kernels write them.
    Ok(vec![
        "-DCANDLEPOWER_HOPPER_ATTENTION".into(),
        "-use_fast_math".into(),
        "-isystem".into(),
        cutlass,
    ])
}

/// One object file.
struct Job {
    source: PathBuf,
    object: PathBuf,
    own_flags: Vec<String>,
}

fn jobs(out: &Path, hopper: Option<&[String]>) -> Vec<Job> {
    let job = |name: &str, suffix: &str, own_flags: Vec<String>| Job {
        source: Path::new(KERNELS).join(name).with_extension("cu"),
        object: out.join(format!("{name}{suffix}.o")),
        own_flags,
    };
    let per_head_dim = SOURCES_PER_HEAD_DIM.iter().flat_map(|name| {
        // The wider the head, the longer its compilation.
        DEVICE_HEAD_DIMS.iter().rev().map(move |dim| {
            job(name, &format!("_{dim}"), vec![format!("-DCANDLEPOWER_HEAD_DIM={dim}")])
        })
    });
    let of_hopper = HOPPER_HEAD_DIMS.iter().map(|dim| {
        let head_dim = format!("-DCANDLEPOWER_HEAD_DIM={dim}");
        let flags = hopper.unwrap_or_default().iter().cloned().chain([head_dim]).collect();
        job(HOPPER_SOURCE, &format!("_{dim}"), flags)
    });
    // The longest jobs come first, so that no processor is idle at the end.
    let per_head_dim = per_head_dim.chain(of_hopper);
    per_head_dim.chain(SOURCES.iter().map(|name| job(name, "", Vec::new()))).collect()
}

fn compile(toolkit: &Toolkit) -> Result<(), String> {
    println!("cargo::rerun-if-changed={KERNELS}");
    let out = PathBuf::from(variable("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let parallel = variable("NUM_JOBS").and_then(|jobs| jobs.parse().ok()).unwrap_or(1usize);
    let jobs = jobs(&out, toolkit.hopper.as_deref());
    compile_all(toolkit, &jobs, parallel)?;
    archive(&out, &jobs)?;
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=candlepower_cuda");
    println!("cargo::rustc-link-lib=cudart");
    println!("cargo::rustc-link-lib=stdc++");
    Ok(())
}

/// Compiles the jobs in their order, `parallel` at a time, and stops after the first failure.
fn compile_all(toolkit: &Toolkit, jobs: &[Job], parallel: usize) -> Result<(), String> {
    let left = Mutex::new(jobs.iter());
    let next = || left.lock().ok()?.next();
    let work = || {
        let outcome = iter::from_fn(next).try_for_each(|job| toolkit.compile(job));
        if outcome.is_err() {
            // The other workers find no job then, and stop.
            iter::from_fn(next).for_each(drop);
        }
        outcome
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..parallel.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("compiling does not panic"))
    })
}

fn archive(out: &Path, jobs: &[Job]) -> Result<(), String> {
    let library = out.join("libcandlepower_cuda.a");
    // `ar` would add to an existing archive.
    let _ = fs::remove_file(&library);
    let status = Command::new("ar")
        .arg("crs")
        .arg(&library)
        .args(jobs.iter().map(|job| &job.object))
        .status()
        .map_err(|error| format!("cannot start ar: {error}; install binutils"))?;
    if status.success() { Ok(()) } else { Err("ar could not make the archive of kernels".into()) }
}

/// An environment variable, if it is set and not empty. Cargo runs this script again when it changes.
fn variable(name: &str) -> Option<String> {
    // Cargo sets these two itself, and the objects do not depend on them.
    if !name.starts_with("NUM_JOBS") && name != "OUT_DIR" {
        println!("cargo::rerun-if-env-changed={name}");
    }
    env::var(name).ok().filter(|value| !value.is_empty())
}
