"""Read the kept results that the first edition wrote: its protocols and certificates, in the words of today.

The package refuses these files. They stay readable here, for the results that have not been run again yet.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ccfs.certificates.schedule import ProposalSchedule
from ccfs.certificates.trajectory import CertificateError, TrajectoryCertificate, certify_event
from ccfs.files.digests import canonical_json, text_digest
from ccfs.protocol.model import EventSpec, Protocol, parse_protocol
from ccfs.protocol.registry import PARTS
from ccfs.results.certificate import AttackedCount

__all__ = ["PROTOCOL", "FirstCertificate", "certificate", "protocol"]

PROTOCOL = "ccfs-protocol-1"
_CERTIFICATE = "ccfs-run-certificate-1"
# Where the first edition kept our parts. No short name has two of these paths, whatever its kind.
_PATHS = MappingProxyType(
    {
        "ccfs.envs:make": "safety-gymnasium",
        "ccfs.controllers.zoo:actor": "zoo",
        "ccfs.controllers.navigator:Navigator": "navigator",
        "ccfs.controllers.navigator:MapGuard": "map-guard",
        "ccfs.controllers.navigator:NavigatorFallback": "navigator",
        "ccfs.controllers.navigator:BrakeFallback": "brake",
        "ccfs.controllers.navigator:StopFallback": "stop",
        "ccfs.components:BoxVerifier": "box",
        "ccfs.components:CenterFallback": "center",
        "ccfs.envs.lidar_box:LidarBox": "lidar-box",
        "ccfs.learned_shift:DangerBurstShift": "danger-burst",
        "ccfs.learned_shift:critic_greedy": "critic-greedy",
        "ccfs.learned_shift:learned": "learned",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCertificate:
    """What a certificate of the first edition says; `trajectory` is computed anew from its counts."""

    protocol: str
    arm: str
    event: str
    definition: EventSpec
    attacks: tuple[AttackedCount, ...]
    trajectory: TrajectoryCertificate


def protocol(path: Path) -> tuple[Protocol, str]:
    """Return the protocol in the words of today, and the hash that it had in the first edition."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.pop("format") != PROTOCOL:
        raise ValueError(f"{path}: must be a protocol of the first edition.")
    former = text_digest(canonical_json({**content, "format": PROTOCOL}))
    for part in (content["environment"], content["program"]["verifier"], *content["controllers"]):
        part["make"] = _PATHS[part["make"]]
    content["environment"]["resolution"] = "exact"  # the first edition rounded nothing
    for part in content["program"]["fallbacks"]:
        part["make"] = _PATHS[part["make"]]
    for attack in content["attacks"]:
        attack["rule"] = _PATHS.get(attack["rule"], attack["rule"])
    for schedule in content["schedules"]:
        schedule["action"] = schedule.pop("block")
        if schedule.pop("steps") is not None:
            raise ValueError(f"{path}: must have constant schedules.")
    content["events"] = [_event(event) for event in content["events"]]
    return parse_protocol(content, where=str(path)), former


def certificate(path: Path) -> FirstCertificate:
    """Return a certificate; refuse one whose numbers do not follow from its counts."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["format"] != _CERTIFICATE:
        raise CertificateError(f"{path}: must be a certificate of the first edition.")
    claim = json.loads(content["claim"])
    proof = certify_event(
        claim["successes"],
        claim["trials"],
        delta=claim["delta"],
        family=claim["family"],
        target=claim["target"],
        schedule=[ProposalSchedule(**block) for block in claim["schedule"]],
        bound=claim["bound"],
        event=claim["event"],
    )
    found = {"p_lower": proof.p_lower, "mu": proof.mu, "budget": proof.budget, "charges": list(proof.charges["action"])}
    for name, value in found.items():
        if claim[name] != value:
            raise CertificateError(f"{path}: `{name}` is {claim[name]} but {value} from its counts.")
    if not content["event"] == content["definition"]["name"] == proof.event:
        raise CertificateError(f"{path}: names several events.")
    return FirstCertificate(
        protocol=content["protocol"],
        arm=content["arm"],
        event=content["event"],
        definition=EventSpec.model_validate_json(json.dumps(_event(content["definition"]))),
        attacks=tuple(AttackedCount(**count, stages=("action",)) for count in content["attacks"]),
        trajectory=proof,
    )


def _event(content: dict[str, object]) -> dict[str, object]:
    """Return an event with its name of today; the limit of a cost was called its budget."""
    name = str(content["event"]).replace("_", "-")
    if name not in PARTS["event"] or content["events"]:
        raise ValueError(f"must be a plain shipped event, got {content['event']!r}.")
    arguments = {("limit" if key == "budget" else key): value for key, value in dict(content["arguments"]).items()}
    return {**content, "event": name, "arguments": arguments}
