"""The kinds of component that a recipe can name, and the version of each contract."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One replaceable part of the engine.

    Attributes:
        name: The word used in recipes, entry points and messages.
        contract: `module:Class` of what an implementation must be; imported only on use.
        summary: What a component of this kind decides.
        api_version: Version of the contract. A component made for another one is refused.
    """

    name: str
    contract: str
    summary: str
    api_version: int = 0


_CONTRACTS = "camshaft.contracts"

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("hardware", f"{_CONTRACTS}.hardware:HardwareBackend", "the device and its executor"),
        Kind("model", f"{_CONTRACTS}.model:ModelFamily", "the architecture that runs the layers"),
        Kind("attention", f"{_CONTRACTS}.attention:AttentionBackend", "how queries meet keys"),
        Kind("cache", f"{_CONTRACTS}.cache:KVManager", "where keys and values live"),
        Kind("eviction", f"{_CONTRACTS}.eviction:EvictionPolicy", "which cached page goes first"),
        Kind("kv_store", f"{_CONTRACTS}.kv_store:KVStore", "a tier that holds evicted pages"),
        Kind("scheduler", f"{_CONTRACTS}.scheduler:Scheduler", "what runs in the next step"),
        Kind("predictor", f"{_CONTRACTS}.predictor:StepTimePredictor", "how long a step takes"),
        Kind("quant", f"{_CONTRACTS}.quant:Quantizer", "how weights are stored and applied"),
        Kind("kv_quant", f"{_CONTRACTS}.kv_quant:KVQuant", "how keys and values are stored"),
        Kind("ops", f"{_CONTRACTS}.ops:OpsProvider", "fused or fast versions of named operations"),
        Kind("sampling", f"{_CONTRACTS}.sampling:Sampler", "how the next token is chosen"),
        Kind("processor", f"{_CONTRACTS}.sampling:LogitsProcessor", "a change to the logits"),
        Kind("speculator", f"{_CONTRACTS}.speculator:Speculator", "who drafts tokens ahead"),
        Kind("grammar", f"{_CONTRACTS}.grammar:GrammarEngine", "which tokens a format allows"),
        Kind("observer", f"{_CONTRACTS}.observer:Observer", "who is told what happened"),
        Kind("command", f"{_CONTRACTS}.command:Command", "a subcommand of `engine`"),
        Kind("route", f"{_CONTRACTS}.route:Route", "HTTP endpoints of the server"),
    )
}
