"""The packaged table of models."""

from fractions import Fraction

from tensorfusion_dra.discovery import gpu_models, model_names, models

PACKAGED = models.load().packaged


def test_rows_keep_their_figures_to_the_thousandth() -> None:
    figures = [Fraction(str(tflops)) * 1000 for _, _, tflops in gpu_models.PACKAGED]

    assert [row.milli_tflops for row in PACKAGED] == figures


def test_all_rows_of_one_name_have_one_figure() -> None:
    figures: dict[str, int] = {}
    for row in PACKAGED:
        for name in (row.model, row.full_name):
            found = figures.setdefault(model_names.key(name), row.milli_tflops)

            assert found == row.milli_tflops, name
