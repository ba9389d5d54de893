"""Clusters of clients, each with its own model."""

from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge, Lt
import jax
import jax.numpy as jnp

from moon_jax import errors
from moon_jax.config.parts import checked, Count, FromRun
from moon_jax.errors import require, setting
from moon_jax.models import heads
from moon_jax.topologies.base import Mixed, Topology

_APART, _FIRST = -2., -3.  # less than each cosine


@checked
def ifca(clusters: Count, head: str = '',
         start: Literal['random', 'kmeans'] = 'random') -> Topology:
  """Returns cluster models; a client trains that of least loss on its data.

  Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS
  2020, https://arxiv.org/abs/2006.04088, algorithm 1 with model averaging:

      j_i = argmin_j F_i(w_j^t)
      w_j^{t+1} = the mean of the models of the clients with j_i = j

  The initial models are drawn independently. In each round a client receives
  all models and evaluates them on its training examples. Released code
  (https://github.com/jichan3751/ifca) averages with equal weights on MNIST
  (weighting="uniform"), and by examples on FEMNIST, where the shared layers are
  those of a model of FedAvg and do not train. HypCluster (Mansour et al., 2020,
  https://arxiv.org/abs/2002.10619) has the same rounds; FedJAX's HypCluster has
  a server optimizer for each cluster.

  Args:
    clusters: number of models, k.
    head: layers that each cluster has for itself, separated by spaces, such as
      "out"; the other layers are averaged over all clients. '' gives each
      cluster a whole model. Bytes are those of k whole models in either case.
    start: "random", or "kmeans" as in FedJAX's HypCluster: in each of the first
      k rounds all its clients train the initial model, and the trained model of
      one client becomes the model of the next cluster. The first such client is
      drawn. Later it is the one that the cluster models so far fit worst: its
      lowest loss over them is the largest. Each round stores all local models.
  """
  topology = Topology(
      num_models=clusters, choose=lambda choice: jnp.argmin(
          _comparable(choice.losses)),
      begin=lambda models: models, needs_losses=True, received=clusters)
  if start == 'kmeans':
    require(not head, 'topology.head', 'must be empty with '
            f'{setting("topology.start", start)}, which has whole models', head,
            'Remove one of them')
    return _with_kmeans_start(topology)
  if not head:
    return topology
  split = heads.body_and_head(head)

  def with_shared_body(models, shared):
    with errors.naming(head='topology.head'):
      body, own = split(models)
    return heads.merge(jax.tree.map(lambda x_M: jnp.broadcast_to(
        shared(x_M), x_M.shape), body), own)

  def mix(mixing):  # if nothing was received, the bodies are still equal
    weight_M = jnp.where(mixing.weight.sum() > 0, mixing.weight, 1)
    weight_M /= weight_M.sum()
    return Mixed(with_shared_body(mixing.models, lambda x_M: jnp.einsum(
        'm,m...->...', weight_M, x_M, precision='highest')), ())

  return topology._replace(mix=mix, begin=lambda models: with_shared_body(
      models, lambda x_M: x_M[0]))


def _comparable(losses):
  """Returns losses where NaN, of a model that diverged, is the largest."""
  return jnp.where(jnp.isnan(losses), jnp.inf, losses)


def _with_kmeans_start(topology):
  """Returns clusters that begin with models of clients, as k-means++ begins.

  The state is the number of clusters that have one. The last cluster has the
  initial model until then, and all clients train it.
  """
  count = topology.num_models
  last = count - 1

  def mix(mixing):
    found, order_J = mixing.state, jnp.argsort(mixing.jobs.client)
    is_received_J, client_J, losses_JM = (x_J[order_J] for x_J in (
        mixing.jobs.is_received, mixing.jobs.client, mixing.jobs.losses))
    best_J = jnp.min(jnp.where(
        jnp.arange(count)[None] < found, _comparable(losses_JM), jnp.inf), 1)
    drawn_J = jax.vmap(lambda client: jax.random.uniform(
        jax.random.fold_in(mixing.key, client)))(client_J)
    score_J = jnp.where(found == 0, drawn_J, best_J)
    worst = order_J[jnp.argmax(jnp.where(is_received_J, score_J, -jnp.inf))]
    center = jax.tree.map(lambda x_M: x_M[last], mixing.models) | {
        'params': jax.tree.map(
            lambda x_M, update_J: x_M[last] + update_J[worst],
            mixing.start['params'], mixing.jobs.update)}
    is_found = is_received_J.any()
    return Mixed(jax.tree.map(
        lambda x_M, start_M, x: jnp.where(found < count, jnp.where(
            is_found, start_M.at[found].set(x), start_M), x_M),
        mixing.models, mixing.start, center),
                 jnp.minimum(found + jnp.int32(is_found), count),
                 keeps_server=found < count)

  return topology._replace(
      choose=lambda choice: jnp.where(
          choice.state < count, last, topology.choose(choice)),
      mix=mix, init=lambda: jnp.int32(0), begin=None, needs_updates=True)


class _Assignment(NamedTuple):
  cluster_C: jax.Array  # int32, of each client
  count: jax.Array  # int32, clusters so far


@checked
def cfl(num_clients: FromRun[Count], clusters: Count,
        eps1: Annotated[float, Ge(0)] = 0.4,
        eps2: Annotated[float, Ge(0)] = 1.6,
        gamma: Annotated[float, Ge(0), Lt(1)] = 0.) -> Topology:
  """Returns clusters that are split in two when their clients disagree.

  Sattler, Müller and Samek, Clustered Federated Learning, 2020,
  https://arxiv.org/abs/1910.01991, algorithm 3, with u_i the update of client i
  and a_ij the cosine of two updates. All clients begin in one cluster c. If

      |sum_{i in c} |D_i| / |D_c| u_i| < eps1  and  max_{i in c} |u_i| > eps2,

  c is split into c_1 and c_2 such that the largest a_ij between them is least,
  if sqrt((1 - a_ij) / 2) > gamma. Each begins with the model of c after the
  round. The defaults are those of the authors' notebook
  (https://github.com/felisat/clustered-federated-learning, commit 23a1c38) for
  ten clients of EMNIST. The notebook has no gamma, weights clients equally,
  splits no cluster before round 21 or of two clients, and adds to each half its
  own mean. Here c_1 has the lowest-numbered client with a received update, and
  all clients without one; the server optimizer of c_2 is initialized.

  Args:
    clusters: largest number of clusters, at which no cluster is split.
    eps1: a cluster is split only if the norm of its mean update is smaller.
    eps2: a cluster is split only if the largest norm of an update is larger.
    gamma: a cluster is split only if the separation of its halves is larger,
      sqrt((1 - a) / 2) for the largest cosine a between them.
  """
  def mix(mixing):
    (cluster_C, count), jobs = mixing.state, mixing.jobs
    order_J = jnp.argsort(jobs.client)  # so that ties do not depend on devices
    gram_JJ = _gram(jobs.update)[order_J][:, order_J]
    jobs = jax.tree.map(lambda x_J: x_J[order_J], jobs._replace(update=()))
    all_M = jnp.arange(clusters)
    is_of_MJ = jobs.is_received[None] & (jobs.model[None] == all_M[:, None])
    norm_J = jnp.sqrt(jnp.diagonal(gram_JJ))
    scale_J = jnp.maximum(norm_J, jnp.finfo(jnp.float32).tiny)
    halves = _halves(gram_JJ / scale_J[:, None] / scale_J[None], is_of_MJ)
    weight_MJ = jnp.where(is_of_MJ, jobs.weight[None], 0)
    weight_MJ /= jnp.maximum(
        weight_MJ.sum(1, keepdims=True), jnp.finfo(jnp.float32).tiny)
    mean_M = jnp.sqrt(jnp.maximum(0, jnp.einsum(
        'mj,jk,mk->m', weight_MJ, gram_JJ, weight_MJ, precision='highest')))
    splits_M = (halves.cosine_M > _APART) & (mean_M < eps1) & (
        jnp.where(is_of_MJ, norm_J[None], 0).max(1) > eps2) & (
            (1 - halves.cosine_M) / 2 > gamma**2)
    new_M = count + jnp.cumsum(splits_M) - 1
    splits_M &= new_M < clusters
    moves_J = halves.is_second_J & (is_of_MJ & splits_M[:, None]).any(0)
    cluster_C = cluster_C.at[jnp.where(moves_J, jobs.client, num_clients)].set(
        new_M[jobs.model], mode='drop')
    source_M = all_M.at[jnp.where(splits_M, new_M, clusters)].set(
        all_M, mode='drop')
    count += splits_M.sum()
    return Mixed(jax.tree.map(lambda x_M: x_M[source_M], mixing.models),
                 _Assignment(cluster_C, count), {'clusters': count})

  return Topology(
      num_models=clusters, mix=mix, needs_updates=True,
      init=lambda: _Assignment(
          jnp.zeros(num_clients, jnp.int32), jnp.int32(1)),
      choose=lambda choice: choice.state.cluster_C[choice.client_id],
      weigh=lambda state: jnp.bincount(
          state.cluster_C, length=clusters) / num_clients,
      num_clients=num_clients)


def _gram(update_J):
  """Returns the products of updates, [J, J]; numbers not finite count as 0."""
  flat = [jnp.where(jnp.isfinite(x_J), x_J, 0).reshape(len(x_J), -1)
          for x_J in jax.tree.leaves(update_J)]
  return sum(jnp.matmul(x_JP, x_JP.T, precision='highest') for x_JP in flat)


class _Halves(NamedTuple):
  is_second_J: jax.Array  # bool, in the half without the first job
  cosine_M: jax.Array  # the largest between them; _APART if there are none


def _halves(cosine_JJ, is_of_MJ):
  """Returns the halves of clusters with the least largest cosine between them.

  They are those of the maximum spanning tree without its weakest edge. Prim's
  algorithm grows the trees of all clusters, one after another, since edges
  between clusters are weaker than all others. A job joins the half of its
  neighbour in the tree; at an edge that is weaker than all before, what was
  there becomes the first half and the job begins the second one.
  """
  count = len(cosine_JJ)
  all_J = jnp.arange(count)
  cluster_J = jnp.where(is_of_MJ.any(0), is_of_MJ.argmax(0), -1 - all_J)
  cosine_JJ = jnp.where(cluster_J[:, None] == cluster_J[None],
                        jnp.clip(cosine_JJ, -1, 1), _APART)

  def add(_, tree):
    """Adds the job that is nearest to the trees."""
    edge_J, parent_J, is_in_J, is_second_J, least_J = tree
    j = jnp.argmax(jnp.where(is_in_J, -jnp.inf, edge_J))
    edge, parent, is_near_J = edge_J[j], parent_J[j], cluster_J == cluster_J[j]
    is_joined = edge > _APART  # otherwise it is the first one of its cluster
    is_cut = is_joined & (edge < least_J[parent])
    is_second_J = jnp.where(is_cut & is_near_J, False, is_second_J).at[j].set(
        is_joined & (is_cut | is_second_J[parent]))
    least_J = jnp.where(
        is_near_J & is_joined, jnp.minimum(least_J, edge), least_J)
    is_in_J = is_in_J.at[j].set(True)
    is_nearer_J = ~is_in_J & (cosine_JJ[j] > edge_J)
    return (jnp.where(is_nearer_J, cosine_JJ[j], edge_J),
            jnp.where(is_nearer_J, j, parent_J), is_in_J, is_second_J, least_J)

  none_J = jnp.zeros(count, bool)
  *_, is_second_J, least_J = jax.lax.fori_loop(0, count, add, (
      jnp.full(count, _FIRST), all_J, none_J, none_J, jnp.full(count, jnp.inf)))
  least_M = jnp.where(is_of_MJ, least_J[None], jnp.inf).min(1)
  return _Halves(is_second_J,
                 jnp.where(jnp.isfinite(least_M), least_M, _APART))
