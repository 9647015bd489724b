"""The commands of an author who stands by a run: sign it, and register its protocol before the first trial."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfs.cli.shared import RunArgument, open_run
from ccfs.files.terminal import echo

if TYPE_CHECKING:
    from ccfs.files.signing import PrivateKey

__all__ = ["app"]

_PANEL = "Stand by a run"
app = typer.Typer()
KeyOption = Annotated[
    Path, typer.Option("--key", help="Your private Ed25519 key in the OpenSSH format, such as ~/.ssh/id_ed25519.")
]


@app.command(rich_help_panel=_PANEL)
def sign(run: RunArgument, key: KeyOption) -> None:
    """Sign a finished run, so that readers know that it is yours.

    The signature is over the manifest, which has the hash of every other file. Sign last: `ccfs report` and `ccfs
    certify` change the manifest. `ccfs verify CERTIFICATE --run RUN --signer KEY.pub` checks it, and so does
    `ssh-keygen -Y verify`. Image runs are signed in the same way.
    """
    from ccfs.runs.signature import NAMESPACE, sign_run

    signed = sign_run(open_run(run), _read_key(key))
    what = f"manifest.json with SHA-256 {signed.manifest}, {len(signed.files)} files"
    echo(f"Signed: {what}, by the key {signed.fingerprint}.")
    if not any(name.startswith("certificates/") for name in signed.files):
        echo("note: the run has no certificate yet. Certify it, and sign again.", err=True)
    echo(f"Signatures: {' and '.join(str(run / name) for name in signed.signatures)} (namespace {NAMESPACE})")


@app.command(rich_help_panel=_PANEL)
def register(
    protocol: Annotated[Path, typer.Argument(help="Protocol file (TOML).")],
    key: KeyOption,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File of the record. Default: beside the protocol file.")
    ] = None,
) -> None:
    """Register a protocol before its first trial: write a small signed record of its hash, its trials and the time.

    Publish the record where nothing can be removed or dated back: a git repository of others, a mailing list, a
    transparency log. Then `ccfs run PROTOCOL --registration RECORD` takes it into the run, and certificates name it.
    """
    from ccfs.files.atomic import write_atomically
    from ccfs.protocol.model import load_protocol
    from ccfs.runs.registration import REGISTRATION, register, registered

    made = load_protocol(protocol)
    path = output or protocol.with_name(f"{protocol.stem}.{REGISTRATION}")
    if path.exists():
        raise ValueError(
            f"{path}: is there already. A record that others may have is not replaced. Choose another name."
        )
    content = register(made, _read_key(key))
    write_atomically(path, content)
    found = registered(content, path)
    echo(
        f"Registered: protocol {made.hash}, {made.trials.count} trials of each of {len(made.arms)} arms, at "
        f"{found.record.time}, by the key {found.key.fingerprint}.",
        f"Record: {path}, SHA-256 {found.digest}. Publish it before the first trial.",
        f"Next: ccfs run {protocol} --registration {path}",
    )


def _read_key(path: Path) -> PrivateKey:
    from ccfs.files.signing import read_private_key

    return read_private_key(
        path.expanduser(), lambda: str(typer.prompt(f"Passphrase of {path}", hide_input=True, err=True))
    )
