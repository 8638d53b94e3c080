"""Pictures that cannot be used: which ones the check of headers finds."""

from __future__ import annotations

from pathlib import Path

from PIL import ExifTags, Image

from codetr.dataset.bad_pictures import BadPictures
from codetr.dataset.coco_files import DatasetError, load_coco, read_picture
from tests.evaluation.coco_folders import document, write_dataset


def turned(path: Path, size: tuple[int, int]) -> None:
    """Writes a picture that EXIF turns by a quarter. A PNG file has that block behind the pixels."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", size).save(path, exif=exif)


def test_check_finds_errors_in_headers(tmp_path, capsys):
    """All of them, in the words of `read_picture`; damaged pixels are found when they are read."""
    names = [f"{index}.{'png' if index in (3, 6) else 'jpg'}" for index in range(12)]
    contents = document()
    contents["annotations"] = [{"id": 1, "image_id": 20, "category_id": 1, "bbox": [1, 1, 5, 5]}]
    contents["images"] = [
        {"id": 20 - index, "file_name": name, "width": 40, "height": 30} for index, name in enumerate(names)
    ]
    contents["images"][9]["file_name"] = "9\0.jpg"
    write_dataset(tmp_path, contents, names=names, sizes=[(40, 30)] * 12)
    folder = tmp_path / "val2017"
    (folder / names[1]).unlink()
    Image.new("RGB", (41, 30)).save(folder / names[2])
    turned(folder / names[3], (30, 40))  # right when it is turned
    turned(folder / names[4], (30, 40))
    turned(folder / names[5], (40, 30))  # wrong when it is turned
    (folder / names[7]).write_text("no picture")
    (folder / names[8]).unlink()
    (folder / names[8]).mkdir()
    (folder / names[11]).write_bytes((folder / names[11]).read_bytes()[:-60])
    dataset = load_coco(tmp_path, "val")
    bad = BadPictures(dataset)
    bad.check()
    assert sorted(bad.errors) == [11, 12, 13, 15, 18, 19]
    for picture in dataset.pictures[:11]:
        words = ""
        try:
            read_picture(picture)
        except DatasetError as error:
            words = str(error)
        assert str(bad.errors.get(picture.id, "")) == words
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 7 and all(line.startswith("codetr: warning: ") for line in lines)
    assert lines[6].endswith(f"6 of 12 pictures of {dataset.annotation_file} cannot be used and are left out")
    assert [picture.id for picture in bad.usable().pictures] == [20, 17, 16, 14, 10, 9]
