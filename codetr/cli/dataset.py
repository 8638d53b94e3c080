"""The commands `codetr dataset …`. The help of `app` is its line of `codetr.cli.app.COMMANDS`."""

from __future__ import annotations

from codetr.cli.argument_types import Folder, InputFile
from codetr.cli.program import make_app
from codetr.errors import ArgumentError

app = make_app("dataset", "Arrange downloaded datasets.", version_flags=())
# The usage of a plain function would begin with the running program, such as "-m pytest".
_imagenet = make_app("imagenet", version_flags=())
app.command(_imagenet)


@_imagenet.default
def imagenet(
    images: Folder,
    out: Folder,
    /,
    *,
    ground_truth: InputFile,
    synsets: InputFile | None = None,
    copy: bool = False,
) -> int:
    """Arrange ImageNet's flat validation set (ILSVRC2012) into class folders named by WordNet id.

    ```
    codetr dataset imagenet ILSVRC2012_img_val imagenet/val --synsets data/meta.mat \\
        --ground-truth data/ILSVRC2012_validation_ground_truth.txt
    ```

    OUT appears when all pictures are in it.

    Args:
        images: folder with ILSVRC2012_val_00000001.JPEG and so on.
        out: new or empty folder.
        ground_truth: text file, with the class of one picture a line: a WordNet id, or a number as in the
            development kit's ILSVRC2012_validation_ground_truth.txt.
        synsets: table of the numbers: the kit's meta.mat (needs scipy), or a text file with a number and a
            WordNet id a line.
        copy: copy the pictures. Default: hard links, which take no space.
    """
    from codetr.classify.imagenet import arrange, find_validation_pictures, read_wordnet_ids
    from codetr.cli.console import progress

    wordnet_ids = read_wordnet_ids(ground_truth, synsets)
    pictures = find_validation_pictures(images)
    if len(pictures) != len(wordnet_ids):
        text = f"expected a line for each of the {len(pictures)} pictures in {images}"
        raise ArgumentError("ground_truth", f"{text}, got {len(wordnet_ids)} lines in {ground_truth}")
    with progress(len(pictures), doing="arranging") as advance:
        arrange(pictures, wordnet_ids, out, copy=copy, advance=advance)
    done = f"{len(pictures)} pictures of {len(set(wordnet_ids))} classes to {out}"
    print(f"{'copied' if copy else 'linked'} {done}")
    return 0
