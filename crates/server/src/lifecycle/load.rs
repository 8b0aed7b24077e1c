//! Loads a local model and starts its engine.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use candlepower_api::LoadProgress;
use candlepower_checkpoint::{
    BATCHED_TOKENS, Checkpoint, Description, ImageTokens, SamplingDefaults, SentenceSettings,
};
use candlepower_dialect::{
    Dialect, ImagePlaces, PastCalls, ReasoningFormat, ThinkingSwitch, ToolFormat, Turns,
};
use candlepower_engine::{
    ChosenDevice, Device, DeviceChoice, Embedder, EmbedderConfig, EngineConfig, EngineHandle,
    LoadOptions, MASK_PATIENCE, PoolingSource, PrefixCacheScope, RankKind, SchedulingPolicy,
    StartProgress, choose_device,
};
use candlepower_media::{Fetcher, Processor, SystemResolver};
use candlepower_tokenizer::ChatTemplate;

use crate::config::{
    ByteSize, CacheScope, DeviceKind, Framework, GenerationConfigSource, ServeConfig,
};
use crate::generation::prompt::{BYTES_PER_TOKEN, unix_seconds};
use crate::lifecycle::error::{Error, Result};
use crate::lifecycle::preflight::gives_vectors;
use crate::lifecycle::pull::LocalModel;
use crate::model::decode_memory::DecodeMemory;
use crate::model::image_input::{ImageInput, ImageSupport, NoImages, TokenSpellings};
use crate::model::served_model::{LoadedModel, ModelCard, PoolingModel, Served};
use crate::model::sessions::Sessions;
use crate::model::state::AppState;
use crate::model::stored_responses::StoredResponses;

/// A step that takes longer makes /health report the engine as stuck. The longest legitimate step has the maximum of batch tokens, with
/// a large model on a small CPU.
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// The device, from the settings and the hardware.
///
/// # Errors
/// The settings ask for a GPU, and none can be used.
pub(crate) fn chosen_device(config: &ServeConfig) -> Result<ChosenDevice> {
    Ok(choose_device(match config.device {
        DeviceKind::Auto => DeviceChoice::Auto,
        DeviceKind::Cpu => DeviceChoice::Cpu,
        DeviceKind::Cuda => DeviceChoice::Cuda,
    })?)
}

/// Loads the model and starts the engine, and reports the progress to `state`. This takes seconds to minutes.
///
/// # Errors
/// The model or the settings are invalid; the error has one line.
pub(crate) fn load(local: LocalModel, device: Device, state: &AppState) -> Result<Served> {
    // Loading has begun, and its size is not known yet.
    state.set_initializing(None);
    let mut report = |progress| match progress {
        StartProgress::Loading { bytes_done, bytes_total } => {
            state.set_initializing(Some(LoadProgress { bytes_done, bytes_total }));
        }
        StartProgress::WarmingUp => state.set_starting(),
        StartProgress::CapturingGraphs { done, total } => {
            state.set_starting();
            tracing::info!("capturing CUDA graphs: {done} of {total}");
        }
    };
    let LocalModel { description, tokenizer, chat_template, names, root, no_images } = local;
    let max_token_bytes = (0..tokenizer.vocab_size() as u32)
        .map(|id| tokenizer.token_bytes(id).len())
        .max()
        .unwrap_or(0)
        .max(1);
    let asked_bytes = state.config().max_prompt_bytes;
    let card = |max_model_len, vocab_size| ModelCard {
        tokenizer,
        names,
        shown_root: shown_root(&root),
        root,
        created: unix_seconds(),
        max_token_bytes,
        max_model_len,
        max_prompt_bytes: max_prompt_bytes(asked_bytes, max_model_len),
        vocab_size,
    };
    match description {
        Description::Decoder(checkpoint) if gives_vectors(state.config(), &checkpoint) => {
            let source = PoolingSource::Decoder(&checkpoint);
            pooling(source, checkpoint.sentence(), card, state, &mut report)
        }
        Description::Decoder(checkpoint) => {
            let config = engine_config(state.config(), device, state);
            let engine = EngineHandle::start(&checkpoint, config, &mut report)?;
            let card = card(engine.info().max_model_len, engine.info().vocab_size);
            let mut model = generating(state.config(), &checkpoint, engine, chat_template, card)?;
            model.images = match no_images {
                Some(reason) => ImageInput::Refused(reason),
                None => images(state, &checkpoint, &model)?,
            };
            Ok(Served::Generating(Arc::new(model)))
        }
        Description::Encoder(checkpoint) => {
            let source = PoolingSource::Encoder(&checkpoint);
            pooling(source, checkpoint.sentence(), card, state, &mut report)
        }
    }
}

/// The argument MODEL as clients see it: only the last part of a local path.
fn shown_root(root: &str) -> String {
    let path = Path::new(root);
    // A hub id is no path here, and clients must name it as a whole.
    let last = path.file_name().filter(|_| path.exists()).and_then(|name| name.to_str());
    last.unwrap_or(root).to_owned()
}

/// Maximum bytes of a prompt's text: four times a full context of common text, and a constant for short contexts.
fn max_prompt_bytes(asked: Option<ByteSize>, max_model_len: usize) -> usize {
    let default = max_model_len.saturating_mul(BYTES_PER_TOKEN).saturating_add(64 << 10);
    asked.map_or(default, |asked| usize::try_from(asked.0).unwrap_or(usize::MAX))
}

/// Starts an embedding or reranking model.
fn pooling(
    source: PoolingSource<'_>,
    sentence: &SentenceSettings,
    card: impl FnOnce(usize, usize) -> ModelCard,
    state: &AppState,
    report: &mut (dyn FnMut(StartProgress) + Send),
) -> Result<Served> {
    let embedder = Embedder::start(source, embedder_config(state), report)?;
    let card = card(embedder.info().max_model_len, embedder.info().vocab_size);
    Ok(Served::Pooling(Arc::new(PoolingModel { card, embedder, sentence: sentence.clone() })))
}

/// A model that generates text, with its chat template and parsers.
fn generating(
    config: &ServeConfig,
    checkpoint: &Checkpoint,
    engine: EngineHandle,
    chat_template: Option<ChatTemplate>,
    card: ModelCard,
) -> Result<LoadedModel> {
    let names = |word: &str| {
        let source = chat_template.as_ref().and_then(|template| template.source(None).ok());
        source.is_some_and(|source| source.contains(word))
    };
    let (knows_developer, takes_documents) = (names("developer"), names("documents"));
    let probed = chat_template.as_ref().map(ChatTemplate::for_probes);
    let dialect = dialect(config, probed.as_ref())?;
    let sessions = Sessions::new(engine.clone(), config.session_ttl());
    Ok(LoadedModel {
        card,
        engine,
        writes_tools: probed.as_ref().is_some_and(candlepower_dialect::writes_tools),
        past_calls: probed.as_ref().map(PastCalls::detect).unwrap_or_default(),
        turns: probed.as_ref().map(Turns::detect).unwrap_or_default(),
        thinking_switch: probed.as_ref().map(ThinkingSwitch::detect).unwrap_or_default(),
        takes_documents,
        images: ImageInput::Refused(NoImages::TextModel),
        chat_template,
        knows_developer,
        dialect,
        sampling_defaults: sampling_defaults(config, checkpoint),
        sessions,
        responses: StoredResponses::default(),
        grammar_compiler: OnceLock::new(),
    })
}

/// The parts by which the images of a model are read.
///
/// # Errors
/// The model's files have no settings for images, or ones that are not supported; the tokenizer lacks a token of images.
fn images(state: &AppState, checkpoint: &Checkpoint, model: &LoadedModel) -> Result<ImageInput> {
    let (vision, processor) = (&model.engine.info().vision, checkpoint.image_processor()?);
    let (Some(vision), Some(processor)) = (vision, processor) else {
        return Ok(ImageInput::Refused(NoImages::TextModel));
    };
    let support = image_support(state, vision.tokens.clone(), processor, model)?;
    Ok(ImageInput::Taken(Box::new(support)))
}

/// The parts by which images are read, from the tokens of an image and the processor of a model.
///
/// # Errors
/// The tokenizer lacks a token of images; the HTTP client cannot be set up.
pub(crate) fn image_support(
    state: &AppState,
    tokens: ImageTokens,
    processor: Processor,
    model: &LoadedModel,
) -> Result<ImageSupport> {
    let spellings = TokenSpellings::of(&tokens, &model.tokenizer).map_err(Error::NoImageToken)?;
    let probed = model.chat_template.as_ref().map(ChatTemplate::for_probes);
    let places = probed.map(|template| ImagePlaces::detect(&template, &spellings.written));
    let config = state.config();
    let policy = config.fetch_policy();
    let max_embeddings = model.engine.info().max_image_embeddings;
    Ok(ImageSupport {
        tokens,
        spellings,
        processor,
        limits: policy.limits,
        decoding: DecodeMemory::new(policy.limits.max_pixels),
        fetcher: Arc::new(Fetcher::new(policy, Arc::new(SystemResolver))?),
        budget: state.images().clone(),
        places: places.unwrap_or_default(),
        max_images: config.limit_mm_per_prompt.images,
        max_embeddings: (max_embeddings > 0).then_some(max_embeddings),
        metrics: state.metrics().images.clone(),
    })
}

/// The formats of tool calls and reasoning: from the settings, else from the chat template.
///
/// # Errors
/// One of the two settings is gpt_oss, and the other is another format.
fn dialect(config: &ServeConfig, template: Option<&ChatTemplate>) -> Result<Dialect> {
    let found = template.map(Dialect::detect).unwrap_or_default();
    let dialect = Dialect {
        tools: config.tool_call_parser.or_found(found.tools),
        reasoning: config.reasoning_parser.or_found(found.reasoning),
    };
    let mixed = dialect.tools.is_some_and(|tools| tools != ToolFormat::GptOss)
        || dialect.reasoning.is_some_and(|reasoning| reasoning != ReasoningFormat::GptOss);
    if dialect.is_harmony() && mixed {
        return Err(Error::MixedParsers);
    }
    Ok(dialect)
}

fn embedder_config(state: &AppState) -> EmbedderConfig {
    let config = state.config();
    EmbedderConfig {
        max_model_len: config.max_model_len,
        pooling: config.pooling,
        dtype: config.dtype.into(),
        load_format: config.load_format,
        max_num_batched_tokens: config.max_num_batched_tokens.unwrap_or(BATCHED_TOKENS),
        max_in_flight: config.max_in_flight(),
        num_threads: config.threads,
        stuck_after: STUCK_AFTER,
        metrics: state.metrics().engine.clone(),
    }
}

fn engine_config(config: &ServeConfig, device: Device, state: &AppState) -> EngineConfig {
    EngineConfig {
        load: LoadOptions {
            device,
            dtype: config.dtype.into(),
            load_format: config.load_format,
            max_model_len: config.max_model_len,
        },
        kv_cache_bytes: config.kv_cache_memory.map(|size| size.0),
        kv_cache_dtype: config.kv_cache_dtype,
        gpu_memory_utilization: config.gpu_memory_utilization,
        // The setting is in GiB.
        swap_bytes: (config.swap_space * f64::from(1 << 30)) as u64,
        enforce_eager: config.enforce_eager,
        deterministic: config.deterministic,
        device_reference: false,
        block_size: config.block_size,
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        max_queued_seqs: config.max_queued_requests,
        enable_prefix_caching: config.prefix_caching(),
        prefix_cache_scope: match config.prefix_cache_scope() {
            CacheScope::Server => PrefixCacheScope::Server,
            CacheScope::Caller => PrefixCacheScope::Caller,
        },
        scheduling_policy: match config.framework {
            Framework::Blaze => SchedulingPolicy::Fcfs,
            Framework::Prism => SchedulingPolicy::LongestPrefix,
        },
        jump_forward: config.framework == Framework::Prism,
        mask_patience: MASK_PATIENCE,
        images: config.image_memory(),
        max_pinned_bytes: config.session_memory.map(|size| size.0),
        num_threads: config.threads,
        tensor_parallel_size: config.tensor_parallel_size,
        rank_kind: RankKind::Processes,
        seed: config.seed,
        stuck_after: STUCK_AFTER,
        metrics: state.metrics().engine.clone(),
    }
}

/// Default sampling parameters of the model, if the settings use them; values out of range are left out. `suppress_tokens` always apply.
fn sampling_defaults(config: &ServeConfig, checkpoint: &Checkpoint) -> SamplingDefaults {
    let found = checkpoint.generation().sampling.clone();
    let SamplingDefaults { suppress_tokens, .. } = found.clone();
    // Suppressed tokens are no matter of taste: the model must never write them.
    if config.generation_config == GenerationConfigSource::None {
        return SamplingDefaults { suppress_tokens, ..SamplingDefaults::default() };
    }
    let usable = SamplingDefaults {
        temperature: found.temperature.filter(|value| (0.0..=2.0).contains(value)),
        top_p: found.top_p.filter(|value| *value > 0.0 && *value <= 1.0),
        top_k: found.top_k.filter(|value| *value >= 1),
        min_p: found.min_p.filter(|value| (0.0..=1.0).contains(value)),
        repetition_penalty: found
            .repetition_penalty
            .filter(|value| (*value as f32).is_normal() && *value > 0.0),
        max_new_tokens: found.max_new_tokens.filter(|value| *value >= 1),
        suppress_tokens,
    };
    if usable != found {
        tracing::warn!(
            "generation_config.json has values out of range, which are ignored: {found:?}"
        );
    }
    usable
}
